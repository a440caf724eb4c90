package terminal

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/settings"
)

// PrintStatus prints the state of a running job, its processes and its shards. log is a line about its update log, or
// "".
func PrintStatus(out io.Writer, s *control.Status, v *protocol.View, log string) {
	fmt.Fprintf(out, "job %s (%s): %s, clock %d%s, generation %d, folder %s\n", s.Job, s.Workload, s.State, s.Clock,
		settings.OfClocks(s.End), s.Generation, s.RunDir)
	replaced := ""
	if s.NoReplace {
		replaced = ", servers that die are not replaced"
	}
	fmt.Fprintf(out, "recovery %s%s; join it at %s\n%s", s.Recovery, replaced, s.Coordinator,
		clocksPerSecond(s.ClocksPerSecond))
	if s.Loss != nil {
		fmt.Fprintf(out, ", loss %.4f", *s.Loss)
	}
	if s.Accuracy != nil {
		fmt.Fprintf(out, ", test accuracy %.4f", *s.Accuracy)
	}
	fmt.Fprintf(out, "\nlast: %s\npushed %.1f MB, pulled %.1f MB, updates lost %d", s.LastEvent,
		float64(s.BytesPushed)/1e6, float64(s.BytesPulled)/1e6, s.UpdatesLost)
	if part := missingUpdatesNote(s.Saving); part != "" {
		fmt.Fprintf(out, ", %s", part)
	}
	fmt.Fprintln(out)
	if s.RegistryAway != nil {
		fmt.Fprintln(out, registryWaitLine(s.RegistryAway, time.Now()))
	}
	mixed := hasSeveralVersions(s)
	for i := range s.Processes {
		p := &s.Processes[i]
		fmt.Fprintf(out, "  %s%s\n", processLine(p), versionNote(p.Version, mixed))
	}
	for _, p := range s.Standbys {
		host := ""
		if p.Host != "" {
			host = ", host " + p.Host
		}
		fmt.Fprintf(out, "  %-12s pid %-8s %s%s%s\n", "standby", pidText(p.PID), p.Role, host,
			versionNote(p.Version, mixed))
	}
	if line := savedLine(s, v.Durable); line != "" {
		fmt.Fprintln(out, "  "+line)
	}
	for _, line := range shardLines(v) {
		fmt.Fprintln(out, "  "+line)
	}
	if log != "" {
		fmt.Fprintln(out, "  "+log)
	}
}

// hasSeveralVersions reports whether a process has another version of Perdure than the coordinator, as during an
// upgrade. Unknown versions do not count.
func hasSeveralVersions(s *control.Status) bool {
	if len(s.Processes) == 0 {
		return false
	}
	own := s.Processes[0].Version // the coordinator is first
	differs := func(version string) bool { return version != "" && version != own }
	return slices.ContainsFunc(s.Processes, func(p control.Process) bool { return differs(p.Version) }) ||
		slices.ContainsFunc(s.Standbys, func(p control.Standby) bool { return differs(p.Version) })
}

// versionNote names a process's version if the job has several.
func versionNote(version string, several bool) string {
	if !several || version == "" {
		return ""
	}
	return ", version " + version
}

// registryWaitLine reports that a coordinator waits for its registry, and the consequences.
func registryWaitLine(a *control.RegistryWait, now time.Time) string {
	waits := time.Duration(a.Seconds * float64(time.Second))
	line := fmt.Sprintf("the registry has been unavailable since %s, for %.0f s; until it answers, the coordinator "+
		"decides nothing; training continues, and this is the state at that time",
		now.Add(-waits).Format(time.TimeOnly),
		a.Seconds)
	if a.Why != "" {
		line += "; " + a.Why
	}
	return line
}

// processLine describes a process in one line: its name, its pid and its state.
func processLine(p *control.Process) string {
	name := p.Role
	if p.Role != string(wire.RoleCoordinator) && p.Role != string(supervisor.RoleLog) {
		name = fmt.Sprintf("%s:%d", p.Role, p.Index)
	}
	condition, more := conditionOf(p)
	who := fmt.Sprintf("%-12s pid %-8s incarnation %-3d", name, pidText(p.PID), p.Incarnation)
	if p.Role == string(supervisor.RoleLog) {
		return who + " " + condition
	}
	return fmt.Sprintf("%s %-9s clock %-8d %4d goroutines, heap %.1f MB%s", who, condition, p.Clock,
		p.Resources.Goroutines,
		float64(p.Resources.HeapBytes)/1e6, intervalLine(p.Role,
			p.Interval)+pendingUpdatesLine(p)+unreadLine(p.Unread)+hostLine(p)+more)
}

// conditionOf returns the state of a process as one word, with a suffix. The place of a drained server remains until
// another server takes it.
func conditionOf(p *control.Process) (condition, more string) {
	ended := p.State == control.ProcessDead || p.State == control.ProcessStarting
	switch drained := p.Drained > 0 && p.Drained >= p.Incarnation; {
	case drained && ended:
		return "drained", ", gone"
	case drained:
		return "drained", ""
	case p.Draining && !ended:
		return "draining", ""
	}
	return string(p.State), ""
}

// hostLine describes a process's host, and the replicas that a server must still hand over.
func hostLine(p *control.Process) (text string) {
	if condition, _ := conditionOf(p); condition == "draining" && p.Shards > 0 {
		text = fmt.Sprintf(", %d shards with %.1f MB left", p.Shards, float64(p.Bytes)/1e6)
	}
	if p.Host != "" {
		text += ", host " + p.Host
	}
	return text
}

// pidText returns "-" if there is no process.
func pidText(pid int) string {
	if pid == 0 {
		return "-"
	}
	return strconv.Itoa(pid)
}
