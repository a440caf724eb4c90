package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/data/registry/etcd"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/shardstore"
	"github.com/perdure/perdure/internal/run/settings"
)

// A block of a page that shows commands is marked by the second word after its opening fence:
//
//	run    the test runs its commands with the real program
//	parse  their flags are parsed, and checked where that needs neither files nor network
//
// In a "console" block, commands begin with "$ ". In an "sh" block, every line is a command.
// A repository rule requires a mark on every block with commands. In running text, code that
// begins with perdure or -- is also parsed, unless it contains a
// placeholder.

// pages returns the paths of the pages whose commands are checked, relative to this directory.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{"../../README.md", "../../CONTRIBUTING.md", "../../CHANGELOG.md"}
	for _, pattern := range []string{
		"../../docs/*.md", "../../docs/design/*.md", "../../docs/guide/*.md", "../../docs/guide/*/*.md",
		"../../docs/formats/*.md",
		"../../docs/bench/measured.md", "../../docs/bench/beside.md", "../../docs/studies/*/*.md",
	} {
		more, err := filepath.Glob(pattern)
		if err != nil || len(more) == 0 {
			t.Fatalf("%s: %v, %v", pattern, more, err)
		}
		list = append(list, more...)
	}
	return list
}

// docLine is a command line that a page shows.
type docLine struct {
	page string
	line int
	text string
}

func (s docLine) String() string {
	return fmt.Sprintf("%s:%d: %s", filepath.Base(s.page), s.line, s.text)
}

// docBlock is one fenced block.
type docBlock struct {
	page, language, mark string
	line                 int
	lines                []string
}

// readPage returns a page's blocks and its other lines by number.
func readPage(t *testing.T, page string) (blocks []docBlock, text map[int]string) {
	t.Helper()
	b, err := os.ReadFile(page)
	must(t, err)
	text = map[int]string{}
	var open *docBlock
	for i, line := range strings.Split(string(b), "\n") {
		info, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && open != nil:
			blocks, open = append(blocks, *open), nil
		case fence:
			language, mark, _ := strings.Cut(info, " ")
			open = &docBlock{page: page, language: language, mark: mark, line: i + 1}
		case open != nil:
			open.lines = append(open.lines, line)
		default:
			text[i+1] = line
		}
	}
	return blocks, text
}

// commands returns a block's commands. A line that ends with a backslash is joined with the next one.
func (b *docBlock) commands() (list []docLine) {
	joined, from := "", 0
	for i, line := range b.lines {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		if joined == "" {
			if from = b.line + 1 + i; b.language == "console" && !ok {
				continue // output of the previous command
			}
		}
		if before, more := strings.CutSuffix(command, "\\"); more {
			joined += before
			continue
		}
		if joined += command; strings.TrimSpace(joined) != "" {
			list = append(list, docLine{b.page, from, joined})
		}
		joined = ""
	}
	return list
}

// TestDocsParse: the program accepts the flags of every command that a page shows.
func TestDocsParse(t *testing.T) {
	list := pages(t)
	for i := range list {
		absolute, err := filepath.Abs(list[i])
		must(t, err)
		list[i] = absolute
	}
	makefile, err := os.ReadFile("../../Makefile")
	must(t, err)
	t.Chdir(t.TempDir()) // where files with the names on the pages can be created
	commands, inText := 0, 0
	seen := map[string]bool{} // pages repeat commands: each is parsed once
	for _, page := range list {
		blocks, text := readPage(t, page)
		for _, b := range blocks {
			if b.mark != "run" && b.mark != "parse" {
				continue
			}
			for _, c := range b.commands() {
				commands++
				if err := parseShown(t, c.text, string(makefile)); err != nil {
					t.Errorf("%v: %v", c, err)
				}
			}
		}
		for n, line := range text {
			for _, code := range inlineCode.FindAllStringSubmatch(line, -1) {
				if !isCommand.MatchString(code[1]) || placeholder.MatchString(code[1]) {
					continue
				}
				inText++
				if seen[code[1]] {
					continue
				}
				seen[code[1]] = true
				if err := parseInText(t, code[1]); err != nil {
					t.Errorf("%v: %v", docLine{page, n, code[1]}, err)
				}
			}
		}
	}
	if commands < 25 || inText < 50 {
		t.Errorf("found only %d commands in blocks and %d in text; the parser misses some", commands, inText)
	}
}

var (
	inlineCode  = regexp.MustCompile("`([^`]+)`")
	isCommand   = regexp.MustCompile(`^((bin/)?perdure [a-z-]|--[a-z])`)
	placeholder = regexp.MustCompile(`…|[\[|/]|(^|[^A-Za-z0-9_-])[A-Z]+\b`)
)

// parseShown checks one command in a block.
func parseShown(t *testing.T, line, makefile string) error {
	args := arguments(line)
	for len(args) > 0 && strings.Contains(args[0], "=") && !strings.HasPrefix(args[0], "-") {
		args = args[1:] // environment variables
	}
	switch program, rest := filepath.Base(args[0]), args[1:]; program {
	case "perdure":
		return parsePerdure(t, rest, false)
	case "train": // the user's own program
		return nil
	case "make":
		if len(rest) == 0 || !regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(rest[0])+`:`).MatchString(makefile) {
			return fmt.Errorf("the Makefile has no such target")
		}
		return nil
	case "pip":
		if !slices.Equal(rest[:1], []string{"install"}) || !strings.Contains(makefile, "bin/wheels") {
			return fmt.Errorf("it does not install a wheel that the Makefile builds")
		}
		return nil
	case "python":
		if len(rest) > 0 && strings.HasPrefix(rest[0], "python/bench/") {
			return ofProgram(rest)
		}
		if len(rest) < 3 || !slices.Equal(rest[:3], []string{"-m", "perdure", "launch"}) {
			return fmt.Errorf("it is not a perdure launch command")
		}
		return parsePerdure(t, rest[2:], false)
	case "curl":
		calls := regexp.QuoteMeta(control.Path) + `(Status|View|Fault|Scale|Drain|Stop)$`
		if !regexp.MustCompile(calls).MatchString(line) {
			return fmt.Errorf("the method does not exist")
		}
		return nil
	}
	return fmt.Errorf("this test cannot check the command; mark the block as text, or extend the test")
}

// arguments splits a command line like a shell, as far as the pages need it.
func arguments(line string) (list []string) {
	word, quoted, any := strings.Builder{}, false, false
	for _, r := range line + " " {
		switch {
		case r == '\'':
			quoted, any = !quoted, true
		case r == '#' && !quoted && !any:
			return list
		case r == ' ' && !quoted:
			if any {
				list = append(list, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(r)
			any = true
		}
	}
	return list
}

// parsePerdure parses a command line and runs the checks of train and up on their flags.
func parsePerdure(t *testing.T, args []string, inText bool) error {
	if len(args) > 0 && args[0] == "launch" {
		args = asUp(args[1:])
	}
	for i, arg := range args[:max(0, len(args)-1)] { // these must exist
		switch next := args[i+1]; arg {
		case "--resume", "--run", "export":
			must(t, os.MkdirAll(filepath.Clean("./"+next), 0o777))
		case "--from":
			must(t, os.MkdirAll(filepath.Dir(filepath.Clean("./"+next)), 0o777))
			must(t, os.WriteFile(filepath.Clean("./"+next), nil, 0o666))
		}
	}
	var c cli
	parser := newParser(context.Background(), &c)
	parser.Stdout, parser.Stderr = io.Discard, io.Discard
	parser.Exit = func(int) { panic(asksForHelp{}) }
	k, err := parsed(parser, args)
	if err != nil || k == nil {
		return err
	}
	switch command, _, _ := strings.Cut(k.Command(), " "); command {
	case "train":
		return checkTrain(&c.Train, workloadOf(k), given(k), inText)
	case "up":
		_, err = c.Up.request(settings.OwnWorkload, given(k)).Job()
	}
	return err
}

// sources is the root directory of the repository. It is computed before a test changes directory.
var sources, _ = filepath.Abs("../..")

// ofProgram checks that a Python program exists and defines each flag. The Python package's own tests run it.
func ofProgram(words []string) error {
	text, err := os.ReadFile(filepath.Join(sources, words[0]))
	if err != nil {
		return err
	}
	for _, word := range words[1:] {
		if strings.HasPrefix(word, "--") && !strings.Contains(string(text), `"`+word+`"`) {
			return fmt.Errorf("%s does not define the flag %s", words[0], word)
		}
	}
	return nil
}

// onlyOfLaunch reports whether a flag of perdure launch has no equivalent in perdure up.
func onlyOfLaunch(arg string) bool { return arg == "--preload" || arg == "--nproc-per-learner" }

// asUp returns the equivalent command line of perdure up, or of perdure host, for perdure launch of the Python package.
func asUp(args []string) []string {
	up, program := []string{"up"}, []string{"--exec"}
	if slices.Contains(args, "--join") {
		up, program = []string{"host"}, []string{"--"}
	}
	for i, arg := range args {
		switch {
		case arg == "--nproc":
			up = append(up, "--workers")
		case onlyOfLaunch(arg), i > 0 && onlyOfLaunch(args[i-1]):
		case strings.HasSuffix(arg, ".py"):
			return append(append(up, program...), strings.Join(args[i:], " "))
		default:
			up = append(up, arg)
		}
	}
	return up
}

// checkTrain runs train's checks of its flags, except for files that do not exist here. A command quoted in running
// text may lack flags that belong to it.
func checkTrain(c *trainCmd, named string, given map[string]bool, inText bool) error {
	a := c.request(named, given)
	switch {
	case c.Again.Resume != "":
		return a.CheckEffective("--resume")
	case c.Again.Fork != "":
		return a.CheckEffective("--fork")
	case c.Again.From != "":
		return a.CheckEffective("--from")
	}
	a.Workload = cmp.Or(named, settings.DefaultWorkload)
	a.Work.Init = "" // its model does not exist here
	delete(a.Given, "init")
	switch {
	case inText && !strings.Contains(c.Asked.Shape.Consistency, "="):
		_, err := a.Job()
		return err
	case a.Workload == settings.DefaultWorkload:
		a.Work.Data = pictures
	case !strings.HasPrefix(c.Work.Data, "synthetic:"):
		a.Work.Data = ""
	}
	_, err := a.New()
	return err
}

type asksForHelp struct{}

// parsed parses a command line. It returns nil if the command line only requests help.
func parsed(parser *kong.Kong, args []string) (k *kong.Context, err error) {
	defer func() {
		if _, help := recover().(asksForHelp); help {
			k, err = nil, nil
		}
	}()
	return parser.Parse(args)
}

// parseInText checks code in running text: a command, or flags alone, which some command must accept. A flag or
// argument without a value is accepted.
func parseInText(t *testing.T, code string) error {
	args := arguments(code)
	if filepath.Base(args[0]) == "perdure" {
		return unlessIncomplete(parsePerdure(t, args[1:], true))
	}
	var first error
	name := strings.TrimPrefix(strings.Split(args[0], "=")[0], "--")
	if name == "nproc" || onlyOfLaunch("--"+name) {
		return nil // a flag of perdure launch in the Python package
	}
	for _, command := range takers {
		if !slices.Contains(flagsOf(command), name) {
			continue
		}
		if len(args) > 1 && args[0] == "--consistency" && strings.Contains(args[1], "=") &&
			!strings.HasPrefix(command, "train") {
			continue // it cannot know the tables
		}
		err := unlessIncomplete(parsePerdure(t, append(arguments(command), args...), true))
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		return fmt.Errorf("no command has the flag --%s", name)
	}
	return first
}

// flagsOf returns the names of the flags of the command at the start of a command line. It looks them up because
// parsing is expensive: it creates a parser.
func flagsOf(line string) (names []string) {
	n := commandTree()
	for _, word := range arguments(line) {
		i := slices.IndexFunc(n.Children, func(c *kong.Node) bool { return c.Name == word })
		if i < 0 {
			break // the command's first argument
		}
		n = n.Children[i]
	}
	if n.DefaultCmd != nil {
		n = n.DefaultCmd
	}
	for _, group := range n.AllFlags(false) {
		for _, f := range group {
			names = append(names, f.Name, "no-"+f.Name)
		}
	}
	return names
}

// commandTree is the tree of the program's commands and flags.
var commandTree = sync.OnceValue(func() *kong.Node { return newParser(context.Background(), &cli{}).Model.Node })

// takers are command lines that a flag in running text may belong to, with the flags that it requires.
var takers = []string{
	"train", "train softmax", "train mf", "train cnn", "train logreg", "train lda", "train quadratic", "up",
	"train --consistency asp", "train --consistency asp --on-outage continue",
	"train --recovery stateless",
	"train --recovery stateless --log nats://a:1", "train --servers 3", "log --dir a", "log dump a --shard 1",
	"log verify a", "checkpoint ls a", "checkpoint prune a --keep 1", "checkpoint export a --to b",
	"runs ls", "runs export a", "study a", "study losses", "report a", "predict a",
	"bench", "bench workloads", "bench recovery", "server", "worker", "scale", "status", "demo", "data fetch mnist",
	"data convert jester a", "data make ctr --to a",
	"version", "init", "coordinator", "host", "keys renew a", "drain a",
}

var incomplete = regexp.MustCompile(`^missing flags|value but got "EOL"|: missing value|^expected "<|^expected one ` +
	`of|: must be one of .* but got ""`)

func unlessIncomplete(err error) error {
	if err != nil && incomplete.MatchString(err.Error()) {
		return nil
	}
	return err
}

// TestDocsRun runs the blocks that are marked run, each in a directory of its own, in a shell with the real program.
// Only two things are scaled down: the embedded data set is a twentieth of its size, because every process loads all of
// it, and a block that trains softmax uses smaller batches. The clocks and failures are those of the page.
func TestDocsRun(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	exe, err := os.Executable()
	must(t, err)
	ran := 0
	for _, page := range pages(t) {
		blocks, _ := readPage(t, page)
		for _, b := range blocks {
			if b.mark != "run" {
				continue
			}
			ran++
			t.Run(fmt.Sprintf("%s:%d", filepath.Base(page), b.line), func(t *testing.T) { runBlock(t, exe, &b) })
		}
	}
	if ran < 4 {
		t.Errorf("only %d blocks are marked run, want at least 4", ran)
	}
}

// smallerBatches is a shell script that stands in for perdure. It runs this program, with smaller batches where the
// command trains on the default data.
const smallerBatches = `#!/bin/sh
case " $* " in
*" --data "*|*" --resume "*|*" --fork "*|*" --from "*|*" train mf "*|*" train cnn "*) ;;
*" train lda "*|*" train logreg "*|*" train quadratic "*|*" --full-batch "*) ;;
" train "*) exec %q "$@" --batch 8 ;;
esac
exec %q "$@"
`

func runBlock(t *testing.T, exe string, b *docBlock) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	must(t, os.Mkdir(bin, 0o777))
	must(t, os.WriteFile(filepath.Join(bin, "perdure"), fmt.Appendf(nil, smallerBatches, exe, exe), 0o777))
	script := "set -e\n"
	for _, c := range b.commands() {
		script += c.text + "\n"
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s\n%v\n%s", script, err, out)
	}
	runs, err := filepath.Glob(filepath.Join(dir, "*", "summary.json"))
	must(t, err)
	for _, s := range runs {
		checkRaces(t, filepath.Dir(s))
	}
}

// TestDocsVersions: the pages about formats and the comment on a frame's layout name the versions that the code writes.
func TestDocsVersions(t *testing.T) {
	files, messages := "../../docs/formats/files.md", "../../docs/formats/messages.md"
	record := "../../docs/formats/registry.md"
	segments, log := "../../docs/formats/segments.md", "../../docs/formats/log.md"
	frame := "../../internal/data/wire/frame.go"
	for _, c := range []struct{ file, want string }{
		{messages, fmt.Sprintf("\n## Wire frames (version %d)\n", wire.Version)},
		{messages, fmt.Sprintf("\n 4      1     version of this format (%d)\n", wire.Version)},
		{frame, fmt.Sprintf("\n//	 4      1     version of this format (%d)\n", wire.Version)},
		{segments, fmt.Sprintf("\n## Checkpoint segment (version %d)\n", checkpoint.SegmentVersion)},
		{files, fmt.Sprintf("\n## Checkpoint manifest (version %d)\n", checkpoint.ManifestVersion)},
		{files, fmt.Sprintf("\n## Running checkpoint's manifest (version %d)\n", checkpoint.RunningVersion)},
		{log, fmt.Sprintf("\n## Shard snapshot (version %d)\n", shardstore.SnapshotVersion)},
		{record, fmt.Sprintf("\n## Registry file (version %d)\n", registry.FileVersion)},
		{record, fmt.Sprintf("\n## Registry in etcd (version %d)\n", etcd.Version)},
		{log, fmt.Sprintf("\n## Update log record (version %d)\n", updatelog.Version)},
	} {
		b, err := os.ReadFile(c.file)
		must(t, err)
		if strings.Count(string(b), c.want) != 1 {
			t.Errorf("%s does not contain %q exactly once", c.file, c.want)
		}
	}
}
