package jobs

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/settings"
)

// Listed is a job in a list for programs.
type Listed struct {
	Name     string        `json:"name"`
	ID       string        `json:"id"`
	Workload string        `json:"workload"`
	State    Phase         `json:"state"`
	Clock    perdure.Clock `json:"clock"`
	End      perdure.Clock `json:"end"`
	At       *time.Time    `json:"at"` // when the leader has said so; null: nobody has
	Leader   string        `json:"leader"`
	Holder   string        `json:"holder"`
	Made     time.Time     `json:"made"`
	By       string        `json:"by"`   // who has made it; "": nobody has said so
	Stop     *Stop         `json:"stop"` // null: nobody has stopped it
	Why      string        `json:"why"`
}

// Stop says who has stopped a job, and when.
type Stop struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// listed is the job as a list has it.
func (j *Job) listed() Listed {
	l := Listed{
		Name: j.Name, ID: j.ID, Workload: j.Workload, State: j.Phase(), End: j.Clocks, Made: j.Made, By: j.By,
	}
	if j.Stops() {
		l.Stop = &Stop{j.Wish.By, j.Wish.At}
	}
	if j.Holder != "" {
		l.Holder = registry.NameOf(j.Holder)
	}
	if s := j.State; s != nil {
		l.Clock, l.End, l.At, l.Why = s.Clock, s.End, &s.At, s.Why
		if j.Holder != "" {
			l.Leader = s.Address
		}
	}
	if j.Err != nil {
		l.Why = plain.Text(j.Err)
	}
	return l
}

// says is a phase as people read it in a list.
var says = map[Phase]string{Waiting: "waiting for a coordinator", Away: "away (nobody leads it)"}

func (p Phase) words() string {
	if text := says[p]; text != "" {
		return text
	}
	return string(p)
}

// Print prints a list of the registry's jobs: a table, names alone, or JSON.
func (r *Registry) Print(out io.Writer, all []Job, quiet, asJSON bool) error {
	if asJSON {
		docs := make([]Listed, len(all))
		for i := range all {
			docs[i] = all[i].listed()
		}
		return plain.JSON(out, docs)
	}
	if quiet {
		for i := range all {
			fmt.Fprintln(out, all[i].Name)
		}
		return nil
	}
	if len(all) == 0 { // it may be another registry than was meant
		_, err := fmt.Fprintf(out, "%s has no jobs; perdure job create records one\n", r)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "name\tworkload\tstate\tclock\tleader\tmade")
	for i := range all {
		l := all[i].listed()
		if l.State == Damaged {
			fmt.Fprintf(w, "%s\t-\t%s\t-\t-\t-\n", l.Name, l.State)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Name, l.Workload, l.State.words(), far(l.Clock, l.End),
			orDash(l.Leader), l.Made.UTC().Format(time.RFC3339))
	}
	return w.Flush()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// orNobody is who has asked for something, as far as he has said so.
func orNobody(by string) string {
	if by == "" {
		return "somebody"
	}
	return by
}

// far is how far a job is.
func far(clock, end perdure.Clock) string {
	if end == 0 {
		return fmt.Sprint(clock)
	}
	return fmt.Sprintf("%d of %d", clock, end)
}

// Show prints one job, on a page.
func (r *Registry) Show(out io.Writer, j *Job, asJSON bool) error {
	if asJSON {
		return plain.JSON(out, struct {
			Listed
			Registry string `json:"registry"`
			Folder   string `json:"folder"`
			File     string `json:"file"`
			Text     string `json:"text"`
			Version  string `json:"version"`
		}{j.listed(), r.String(), j.folder(), j.File, j.Text, j.Version})
	}
	l := j.listed()
	fmt.Fprintf(out, "job %s\n", j.Name)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(out, "  %-10s%s\n", name, fmt.Sprintf(format, args...))
	}
	row("state", "%s", l.State.words())
	if l.Why != "" {
		row("why", "%s", l.Why)
	}
	if l.At != nil {
		row("clock", "%s, %s", far(l.Clock, l.End), since(r.now().Sub(*l.At)))
	} else {
		row("clock", "%s", far(l.Clock, l.End))
	}
	if l.Holder != "" {
		row("leader", "%s, %s", orDash(l.Leader), l.Holder)
	}
	if folder := j.folder(); folder != "" {
		row("folder", "%s, on the machine of its last leader", folder)
	}
	row("workload", "%s", j.Workload)
	row("made", "%s, by %s, with perdure %s", l.Made.UTC().Format(time.RFC3339), orNobody(l.By), j.Version)
	if l.Stop != nil {
		row("stopped", "%s, by %s", l.Stop.At.UTC().Format(time.RFC3339), orNobody(l.Stop.By))
	}
	row("id", "%s", j.ID)
	row("registry", "%s", r)
	fmt.Fprintf(out, "\nnext\n")
	for _, line := range r.next(j) {
		fmt.Fprintf(out, "  %s\n", line)
	}
	fmt.Fprintf(out, "\nasked for, in %s\n", j.File)
	for line := range strings.Lines(j.Text) {
		fmt.Fprintf(out, "  %s\n", strings.TrimRight(line, "\r\n"))
	}
	return nil
}

func (j *Job) folder() string {
	if j.State == nil {
		return ""
	}
	return j.State.Folder
}

// next is what is to be done now.
func (r *Registry) next(j *Job) []string {
	lead := fmt.Sprintf("perdure coordinator --registry %s --name %s --dir DIR --listen HOST:PORT --keys KEYS", r,
		j.Name)
	switch phase := j.Phase(); {
	case phase.Ended():
		return []string{"nothing; perdure job rm " + j.Name + " forgets it"}
	case j.Holder == "" && phase == Stopping:
		return []string{"nobody leads it; start a coordinator, which ends it:", lead}
	case j.Holder == "":
		return []string{"start a coordinator, or several on several machines:", lead}
	case phase == Stopping:
		return []string{"nothing; it ends by itself"}
	case j.State == nil || j.State.Address == "":
		return []string{"nothing; its leader is just beginning"}
	}
	command := ""
	if j.Workload == settings.OwnWorkload {
		command = " -- PROGRAM"
	}
	return []string{
		"on each machine:",
		fmt.Sprintf("perdure host --registry %s --job %s --keys KEYS --servers N --workers N%s", r, j.Name, command),
	}
}

// since is how long ago something was said. Wall clocks of machines differ.
func since(d time.Duration) string {
	if d < time.Second {
		return "just now"
	}
	return fmt.Sprintf("%v ago", d.Round(time.Second))
}
