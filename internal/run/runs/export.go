package runs

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
)

// Exports holds the flags of perdure runs export; "" means that a format is not written.
type Exports struct {
	CSV         string `name:"csv" help:"@runs_csv" placeholder:"FILE" type:"path"`
	Series      string `help:"@runs_series" placeholder:"FILE" type:"path"`
	TensorBoard string `name:"tensorboard" help:"@runs_tensorboard" placeholder:"DIR" type:"path"`
	Force       bool   `help:"Replace existing files."`
}

// exportResult is the result of an export, for programs.
type exportResult struct {
	Files []writtenFile `json:"files"`
	Notes []string      `json:"notes"` // runs that were skipped, and why
}

type writtenFile struct {
	File string `json:"file"`
	Rows int    `json:"rows"`
	Of   string `json:"of"` // kind of the rows
}

// exporter exports runs and reports the files that it has written.
type exporter struct {
	*humanize.Printer
	files []writtenFile
}

func (e *exporter) wrote(file string, rows int, of string) {
	e.Line("%s: %d %s", file, rows, of)
	e.files = append(e.files, writtenFile{file, rows, of})
}

// Export writes runs for other programs. A damaged run appears only among the rows of runs, with the reason.
func Export(out io.Writer, all []*Run, to Exports, asJSON bool) error {
	if to.CSV == "" && to.Series == "" && to.TensorBoard == "" {
		return perdure.Usagef("no output given; use --csv FILE, --series FILE or --tensorboard DIR")
	}
	if err := to.check(); err != nil { // write nothing if one of the files cannot be written
		return err
	}
	e := &exporter{Printer: humanize.NewPrinter(out, asJSON), files: []writtenFile{}}
	if to.CSV != "" {
		rows, err := csvRows(all)
		if err == nil {
			err = e.writeCSV(to.CSV, rows, "runs", to.Force)
		}
		if err != nil {
			return err
		}
	}
	if to.Series != "" {
		if err := e.writeCSV(to.Series, e.seriesRows(all), "measurements", to.Force); err != nil {
			return err
		}
	}
	if to.TensorBoard != "" {
		if err := e.writeTensorBoard(all, to.TensorBoard, to.Force); err != nil {
			return err
		}
	}
	return e.End(exportResult{e.files, e.Notes()})
}

// check returns an error if the files of --csv and --series, or the directory of --tensorboard, cannot be written.
// Export calls it before it writes anything. Only existing files in that directory are noticed later, by writeFile.
func (to *Exports) check() error {
	for _, file := range []string{to.CSV, to.Series} {
		if file == "" {
			continue
		}
		if err := mayWrite(file, to.Force); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Dir(file)); errors.Is(err, fs.ErrNotExist) {
			return dirError(file)
		}
	}
	if at, err := os.Stat(to.TensorBoard); to.TensorBoard != "" && err == nil && !at.IsDir() {
		return perdure.Usagef("--tensorboard %s is a file; choose a directory", to.TensorBoard)
	}
	if to.CSV != "" && filepath.Clean(to.CSV) == filepath.Clean(to.Series) {
		return perdure.Usagef("--csv and --series are the same file, %s; choose different files", to.CSV)
	}
	return nil
}

// csvRows returns a header and a row for each run: the fields of a list, and each setting of run.json by its path.
func csvRows(all []*Run) (rows [][]string, err error) {
	var columns []map[string]string
	names := map[string]bool{}
	for _, r := range all {
		column := map[string]string{}
		if r.Settings.Job.ID != "" {
			if column, err = r.Flat(); err != nil {
				return nil, err
			}
		}
		columns = append(columns, column)
		for name := range column {
			names[name] = true
		}
	}
	settings := slices.Sorted(maps.Keys(names))
	for i, r := range all {
		line, err := flat(r.Line())
		if err != nil {
			return nil, err
		}
		if i == 0 {
			rows = append(rows, append(slices.Clone(lineNames), settings...))
		}
		var row []string
		for _, name := range lineNames {
			row = append(row, line[name])
		}
		for _, name := range settings {
			row = append(row, columns[i][name])
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// lineNames are the fields of a Line in order.
var lineNames = []string{
	"folder", "state", "began", "workload", "workers", "servers", "seed", "consistency", "recovery", "on_outage",
	"clock", "clocks", "wall_seconds", "metric", "result", "faults", "updates_lost", "clocks_redone", "model_sha256",
	"problem",
}

// seriesRows returns a header, and one row for each measurement of any run. The first column is the run's directory.
// The others are all columns that occur in some run; cells are empty where a run lacks the column.
func (e *exporter) seriesRows(all []*Run) (rows [][]string) {
	var columns []string
	read := map[string]rundir.Series{}
	for _, r := range all {
		s, err := rundir.ReadSeries(r.Folder)
		if err != nil {
			e.Note("%s: skipped: %v", r.Folder, cause(err))
			continue
		}
		read[r.Folder] = s
		for _, c := range s.Columns {
			if !slices.Contains(columns, c) {
				columns = append(columns, c)
			}
		}
	}
	rows = append(rows, append([]string{"run"}, columns...))
	for _, r := range all {
		s := read[r.Folder]
		for _, cells := range s.Rows {
			row := make([]string, 1+len(columns))
			row[0] = r.Folder
			for i, c := range s.Columns {
				row[1+slices.Index(columns, c)] = cells[i]
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func (e *exporter) writeCSV(file string, rows [][]string, what string, force bool) error {
	err := writeFile(file, force, func(w io.Writer) error {
		c := csv.NewWriter(w)
		return cmp.Or(c.WriteAll(rows), c.Error())
	})
	if err != nil {
		return err
	}
	e.wrote(file, len(rows)-1, what)
	return nil
}

// writeFile writes a file completely or not at all.
func writeFile(file string, force bool, write func(io.Writer) error) error {
	if err := mayWrite(file, force); err != nil {
		return err
	}
	err := disk.WriteFile(disk.OS(), filepath.ToSlash(file), write)
	if errors.Is(err, fs.ErrNotExist) {
		return dirError(file)
	}
	return err
}

func mayWrite(file string, force bool) error {
	if _, err := os.Lstat(file); err == nil && !force {
		return perdure.Usagef("%s already exists; choose another name, or use --force", file)
	}
	return nil
}

func dirError(file string) error {
	return perdure.Usagef("the directory %s does not exist", filepath.Dir(file))
}

// tensorBoardTags maps columns of a run's measurements to the tags under which TensorBoard shows them. TensorBoard
// groups tags by the part before the slash. Other columns are not exported.
var tensorBoardTags = map[string]string{
	"train_loss": "loss/train", "test_loss": "loss/test", "test_accuracy": "accuracy/test",
	"train_rmse": "rmse/train", "test_rmse": "rmse/test", "clocks_per_second": "speed/clocks_per_second",
	"samples_per_second": "speed/samples_per_second", "mb_pushed_per_second": "network/mb_pushed_per_second",
	"mb_pulled_per_second": "network/mb_pulled_per_second", "time_compute": "time/compute",
	"time_staleness": "time/staleness", "time_communication": "time/communication",
	"cpu_server": "processors/server", "cpu_worker": "processors/worker", "cpu_coordinator": "processors/coordinator",
	"mb_server": "memory/mb_server", "mb_worker": "memory/mb_worker", "mb_coordinator": "memory/mb_coordinator",
	"outage_clocks": "outage/clocks", "stale_rows": "outage/stale_rows", "outage_queued_mb": "outage/queued_mb",
	"outage_waited_s": "outage/waited_s", "backlog": "outage/backlog",
}

// writeTensorBoard writes the measurements of all runs as TensorBoard event files, each in a subdirectory of dir named
// after the run's directory. A measurement's clock is its step. A run without readable measurements is skipped with a
// note. An existing file is replaced only if force is true.
func (e *exporter) writeTensorBoard(all []*Run, dir string, force bool) error {
	for _, r := range all {
		s, err := rundir.ReadSeries(r.Folder)
		if err != nil {
			e.Note("%s: skipped: %v", r.Folder, cause(err))
			continue
		}
		name := strings.Trim(strings.ReplaceAll(filepath.ToSlash(r.Folder), "../", ""), "/.")
		to := filepath.Join(dir, filepath.FromSlash(cmp.Or(name, "run")))
		if err := os.MkdirAll(to, 0o777); err != nil {
			return perdure.Usagef("%w", cause(err))
		}
		file := filepath.Join(to, fmt.Sprintf("events.out.tfevents.%d.perdure", r.Began.Unix()))
		err = writeFile(file, force, func(w io.Writer) error { return writeEvents(w, r, &s) })
		if err != nil {
			return err
		}
		e.wrote(file, len(s.Rows), "measurements")
	}
	return nil
}

func writeEvents(w io.Writer, r *Run, s *rundir.Series) error {
	began := float64(r.Began.Unix())
	b := newEventWriter(w, began)
	at, clock := slices.Index(s.Columns, "seconds"), slices.Index(s.Columns, "clock")
	for _, row := range s.Rows {
		var seconds float64
		var step int64
		if at >= 0 {
			seconds, _ = strconv.ParseFloat(row[at], 64) // 0 on error: at the start
		}
		if clock >= 0 {
			step, _ = strconv.ParseInt(row[clock], 10, 64) // 0 on error
		}
		var scalars []scalar
		for i, c := range s.Columns {
			if v, err := strconv.ParseFloat(row[i], 64); err == nil && tensorBoardTags[c] != "" {
				scalars = append(scalars, scalar{tensorBoardTags[c], v})
			}
		}
		b.add(began+seconds, step, scalars)
	}
	return b.err
}
