package terminal

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// panel is a block of lines at the bottom of a terminal that is redrawn in place. Events scroll by above it.
type panel struct {
	*plainView
	fd     int
	colour bool
	lines  int // currently shown
	loss   boundedCurve
	faults []perdure.Clock // clocks of failures
}

// redraw is the minimum time between two drawings of the panel.
const redraw = 100 * time.Millisecond

// maxMarks limits how many failures the bar marks. Later ones would share cells with earlier ones.
const maxMarks = 10_000

func (v *panel) Event(now *State, e wire.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if (e.Kind == "fault" || e.Kind == "detected") && len(v.faults) < maxMarks {
		v.faults = append(v.faults, e.Clock)
	}
	v.erase()
	v.plainView.Event(now, e)
	v.draw(now)
}

func (v *panel) Progress(now *State) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.last) < redraw {
		return
	}
	v.last = time.Now()
	if now.TrainRMSE != nil {
		v.loss.add(*now.TrainRMSE)
	} else if now.TrainLoss != nil {
		v.loss.add(*now.TrainLoss)
	}
	v.erase()
	v.draw(now)
}

func (v *panel) End(s *rundir.Summary, dir string, missed []supervisor.Fault) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.plainView.End(s, dir, missed)
}

func (v *panel) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
}

func (v *panel) erase() {
	if v.lines > 0 {
		fmt.Fprintf(v.out, "\r\x1b[%dA\x1b[J", v.lines) // the terminal may have shown ^C
		v.lines = 0
	}
}

func (v *panel) draw(now *State) {
	width, height, err := term.GetSize(v.fd)
	if err != nil || width < 20 {
		width, height = 80, 24
	}
	lines := v.picture(now, width-1, height)
	for _, l := range lines {
		fmt.Fprintln(v.out, l)
	}
	v.lines = len(lines)
}

// linesBesidesLanes is how many lines a panel has in addition to its lanes, including one that stays free for an event.
const linesBesidesLanes = 7

// picture returns the panel as lines of at most width columns. There are fewer lines than height, the height of the
// screen.
func (v *panel) picture(now *State, width, height int) (lines []string) {
	p := &now.Progress
	add := func(line string, coloured bool) {
		if line = cut(line, width); coloured && v.colour {
			line = colours.Replace(line)
		}
		lines = append(lines, line)
	}
	add(strings.Repeat("─", width), false)
	add(headline(now, width), false)
	if p.End < settings.NoEnd {
		add(bar(p.Clock, max(p.End, 1), v.faults, width), true)
	}
	if drawn := v.loss.draw(width - 24); drawn != "" {
		name := "loss"
		if now.TrainRMSE != nil {
			name = "rmse"
		}
		add(name+" "+drawn+fmt.Sprintf(" %.4g to %.4g", v.loss.first, v.loss.newest), true)
	}
	add(servers(p.Members), true)
	for _, lane := range lanes(p.Members, width, height-linesBesidesLanes) {
		add(lane, true)
	}
	add("last: "+now.LastEvent, false)
	return lines
}

// headline shows the job's speed and remaining time first, and then as much else as fits.
func headline(now *State, width int) string {
	var parts []string
	if now.ClocksPerSecond != nil {
		parts = append(parts, clocksPerSecond(*now.ClocksPerSecond))
	}
	if left := remainingTime(now); left != "" {
		parts = append(parts, left)
	}
	parts = append(parts, strings.Join(strings.Fields(progressText(now)), " "))
	parts = append(parts, quality(now)...)
	parts = append(parts, fmt.Sprintf("%.1f s", now.Since.Seconds()), fmt.Sprintf("%.1f MB/s", now.MBPerSecond))
	line := parts[0]
	for _, part := range parts[1:] {
		if utf8.RuneCountInString(line)+2+utf8.RuneCountInString(part) > width {
			break
		}
		line += "  " + part
	}
	return line
}

// cut truncates a line to a width.
func cut(line string, width int) string {
	if r := []rune(line); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return line
}

// Signs for the state of a process, and for a failure on the bar. They also differ in shape, so that colours are not
// needed.
const (
	signAlive, signDead, signSilent, signWaiting, signFailure = "●", "✗", "◌", "○", "╳"
)

// colours maps signs to colours of the terminal's palette, which fit light and dark themes.
var colours = strings.NewReplacer(
	signAlive, "\x1b[32m"+signAlive+"\x1b[0m", signDead, "\x1b[31m"+signDead+"\x1b[0m",
	signSilent, "\x1b[33m"+signSilent+"\x1b[0m", signFailure, "\x1b[31m"+signFailure+"\x1b[0m",
)

// sign returns the sign for the state of a process.
func sign(state string) string {
	switch state {
	case "alive":
		return signAlive
	case "dead":
		return signDead
	case "silent":
		return signSilent
	case "waiting":
		return signWaiting
	}
	return " "
}

// bar draws the job's progress with marks at the clocks of failures.
func bar(clock, end perdure.Clock, faults []perdure.Clock, width int) string {
	place := func(c perdure.Clock) int { return int(int64(width) * int64(max(0, min(c, end))) / int64(end)) }
	full := place(clock)
	cells := strings.Split(strings.Repeat("█", full)+strings.Repeat("░", width-full), "")
	for _, f := range faults {
		cells[min(place(f), width-1)] = signFailure
	}
	return strings.Join(cells, "")
}

// servers shows the states of the servers.
func servers(places []wire.MemberProgress) string {
	line := "servers   "
	for _, p := range places {
		if p.Role == wire.RoleServer {
			line += sign(p.State)
		}
	}
	return line
}
