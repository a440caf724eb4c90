package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure/internal/run/study"
)

// cell is one setting of the study, which runs once for each seed with failures and
// once without.
type cell struct {
	Mode, Strategy string
	Continue       bool // workers go on while there is no server
}

// String is how the page calls it.
func (c cell) String() string { return c.Mode + " " + c.panel() }

// panel is the cell without its mode.
func (c cell) panel() string {
	if c.Continue {
		return c.Strategy + ", continue"
	}
	return c.Strategy
}

// kept is how many servers a strategy keeps each shard on.
func (c cell) kept() int {
	chain, isChain := strings.CutPrefix(c.Strategy, "chain:")
	n, _, _ := strings.Cut(chain, ",")
	servers, err := strconv.Atoi(n)
	if !isChain || err != nil {
		return 1
	}
	return servers
}

// run is one job of the study.
type run struct {
	cell
	Seed   int
	Killed bool // servers are
}

func (r run) String() string {
	return fmt.Sprintf("%-32s %-16s seed %d", r.cell,
		map[bool]string{true: "with failures", false: "without failures"}[r.Killed], r.Seed)
}

// cells are those that are wanted.
func (s settings) cells() (cells []cell) {
	for _, strategy := range s.Strategies {
		for _, mode := range s.Modes {
			cells = append(cells, cell{mode, strategy, false})
			kind, _, _ := strings.Cut(strategy, ":")
			if mode == "asp" && (kind == "stateless" || kind == "resend") {
				cells = append(cells, cell{mode, strategy, true})
			}
		}
	}
	return cells
}

// endless is a number of clocks that no run comes to.
const endless = 1_000_000_000

// arguments are those of perdure for the run, without its folder.
func (s settings) arguments(r run) []string {
	args := []string{
		"train", s.Workload, "--workers", strconv.Itoa(s.Workers), "--servers", strconv.Itoa(r.kept()), "--shards",
		strconv.Itoa(max(s.Shards, r.kept())),
		"--recovery", r.Strategy, "--consistency", r.Mode, "--clocks", strconv.Itoa(endless), "--until",
		"time:" + s.scaled(s.Length).String(),
		"--eval-every", s.scaled(s.Eval).String(), "--seed", strconv.Itoa(r.Seed), "--quiet",
	}
	add := func(wanted bool, flag, value string) {
		if wanted {
			args = append(args, flag, value)
		}
	}
	add(s.Data != "", "--data", s.Data)
	add(s.Batch > 0, "--batch", strconv.Itoa(s.Batch))
	add(s.LR > 0, "--lr", study.Format(s.LR))
	add(s.computeMs() > 0, "--compute-ms", strconv.Itoa(s.computeMs()))
	add(r.Continue, "--on-outage", "continue")
	for i, at := range s.Kills {
		// Whoever was killed comes back as its chain's last: the next kill is to hit
		// one that is the first of some.
		add(r.Killed, "--fault", fmt.Sprintf("kill:server:%d@%s+%s", i%r.kept(), s.scaled(at), s.scaled(s.Outage)))
	}
	return args
}

func (s settings) computeMs() int {
	return int(s.scaled(time.Duration(s.ComputeMs) * time.Millisecond).Milliseconds())
}

// folder is named for all that the run depends on: other settings, another folder.
func (s settings) folder(r run) string {
	name := strings.NewReplacer(" ", "-", ":", "-", ",", "-").Replace(strings.ReplaceAll(r.cell.String(), ", ", " "))
	return study.Folder(filepath.Join(s.Runs, map[bool]string{true: "killed", false: "calm"}[r.Killed]),
		fmt.Sprintf("%s-seed-%d", name, r.Seed), s.arguments(r))
}

// omission is a cell that is left out, and why.
type omission struct {
	cell
	Why string
}

// accepted asks perdure which of the cells it can run. It is asked to run them in a
// folder that is a file: it checks all else first, and then refuses that.
func (s settings) accepted(ctx context.Context, cells []cell) (can []cell, out []omission, err error) {
	file, err := os.CreateTemp("", "perdure-study-")
	if err != nil {
		return nil, nil, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	for _, c := range cells {
		args := s.arguments(run{cell: c, Seed: s.Seeds[0], Killed: true})
		text, err := exec.CommandContext(ctx, s.Perdure, append(args, "--out", file.Name())...).CombinedOutput()
		switch said := strings.TrimPrefix(lastLine(string(text)), "perdure: "); {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case strings.HasPrefix(said, file.Name()+" is a file"):
			can = append(can, c)
		case err != nil && said == "":
			return nil, nil, fmt.Errorf("%s cannot be asked what it can run: %w", s.Perdure, err)
		case err == nil:
			return nil, nil, fmt.Errorf("%s, asked to run %s in a folder that is none, says no error but %q", s.Perdure,
				c, said)
		default:
			out = append(out, omission{c, said})
		}
	}
	if len(can) == 0 {
		return nil, nil, fmt.Errorf("this perdure can run nothing of the study; of %s it says: %s", out[0].cell,
			out[0].Why)
	}
	return can, out, nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// runner runs what has not run yet.
type runner struct {
	settings
	screen io.Writer
}

// all returns the results of the cells' runs, and runs those that there are none of.
func (rn *runner) all(ctx context.Context, cells []cell) (results []*result, err error) {
	var missing []run
	for _, seed := range rn.Seeds { // the outer loop: a study that is stopped has all cells
		for _, killed := range []bool{true, false} {
			for _, c := range cells {
				r := run{c, seed, killed}
				res, err := rn.settings.read(r)
				switch {
				case errors.Is(err, os.ErrNotExist):
					missing = append(missing, r)
				case err != nil:
					return nil, err
				default:
					results = append(results, res)
				}
			}
		}
	}
	fmt.Fprintf(rn.screen, "%d runs, %d of them are there already; the others take %s\n",
		len(results)+len(missing), len(results),
		study.Roughly(time.Duration(len(missing))*(rn.scaled(rn.Length)+3*time.Second)))
	if rn.List {
		for _, r := range missing {
			fmt.Fprintf(rn.screen, "%s  perdure %s\n", r, strings.Join(rn.arguments(r), " "))
		}
	}
	if rn.List || rn.Report {
		return results, nil
	}
	err = study.Sweep(rn.screen, missing, func(run) float64 { return 1 }, func(r run) (string, error) {
		res, err := rn.run(ctx, r)
		if err != nil {
			return "", err
		}
		results = append(results, res)
		return res.line(), nil
	})
	return results, err
}

// endFile says why a run has no summary, in one line.
const endFile = "end.txt"

// run runs a job. That it fails is a result, too.
func (rn *runner) run(ctx context.Context, r run) (*result, error) {
	folder := rn.folder(r)
	output, late, err := study.Run(ctx, rn.Perdure, rn.arguments(r), folder, rn.scaled(rn.Length)+rn.Slack)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("stopped at %s; what has run is kept, the same command goes on", r)
	}
	if err != nil {
		why := lastLine(output)
		if late {
			why = "it did not end in time"
		}
		if err := os.MkdirAll(folder, 0o777); err != nil { // it may have ended before it made one
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(folder, endFile), []byte(strings.TrimPrefix(why, "perdure: ")+"\n"),
			0o666); err != nil {
			return nil, err
		}
	}
	return rn.settings.read(r)
}
