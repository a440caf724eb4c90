package screen

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
)

// panel is a block of lines at the bottom of a terminal, drawn anew in place;
// events scroll by above it.
type panel struct {
	*plainView
	fd     int
	colour bool
	lines  int // of the panel as it stands
	loss   trail
	faults []perdure.Clock // when something failed
}

// redraw is the least time between two drawings of the panel.
const redraw = 100 * time.Millisecond

// mostMarks is how many failures the bar marks, the first: a cell shows one of many.
const mostMarks = 10_000

func (v *panel) Event(now *State, e wire.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if (e.Kind == "fault" || e.Kind == "detected") && len(v.faults) < mostMarks {
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

func (v *panel) End(s *rundir.Summary, folder string, missed []supervisor.Fault) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.plainView.End(s, folder, missed)
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

// besideLanes is how many lines a panel has beside its lanes, and one that stays free for an event.
const besideLanes = 7

// picture is the panel in lines of at most width columns, and of fewer lines than height, the screen's.
func (v *panel) picture(now *State, width, height int) (lines []string) {
	p := &now.Told
	add := func(line string, coloured bool) {
		if line = cut(line, width); coloured && v.colour {
			line = colours.Replace(line)
		}
		lines = append(lines, line)
	}
	add(strings.Repeat("─", width), false)
	add(headline(now, width), false)
	add(bar(p.Clock, max(p.End, 1), v.faults, width), true)
	if drawn := v.loss.draw(width - 24); drawn != "" {
		name := "loss"
		if now.TrainRMSE != nil {
			name = "rmse"
		}
		add(name+" "+drawn+fmt.Sprintf(" %.4g to %.4g", v.loss.first, v.loss.newest), true)
	}
	add(servers(p.Places), true)
	for _, lane := range lanes(p.Places, width, height-besideLanes) {
		add(lane, true)
	}
	add("last: "+now.LastEvent, false)
	return lines
}

// headline says first how fast the job is and how long it will take, and then as much as there is room for.
func headline(now *State, width int) string {
	var parts []string
	if now.ClocksPerSecond != nil {
		parts = append(parts, clocksPerSecond(*now.ClocksPerSecond))
	}
	if left := left(now); left != "" {
		parts = append(parts, left)
	}
	parts = append(parts, strings.Join(strings.Fields(far(now)), " "))
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

// cut brings a line to a width.
func cut(line string, width int) string {
	if r := []rune(line); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return line
}

// Signs of how a process is, and of a failure on the bar. They differ in shape, too: colours
// only help.
const (
	signAlive, signDead, signSilent, signWaiting, signFailure = "●", "✗", "◌", "○", "╳"
)

// colours put signs into colours of the terminal's own palette, so that they fit light and dark ones.
var colours = strings.NewReplacer(
	signAlive, "\x1b[32m"+signAlive+"\x1b[0m", signDead, "\x1b[31m"+signDead+"\x1b[0m",
	signSilent, "\x1b[33m"+signSilent+"\x1b[0m", signFailure, "\x1b[31m"+signFailure+"\x1b[0m",
)

// sign is how a process is.
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

// bar draws how far the job is, and when something failed.
func bar(clock, end perdure.Clock, faults []perdure.Clock, width int) string {
	place := func(c perdure.Clock) int { return int(int64(width) * int64(max(0, min(c, end))) / int64(end)) }
	full := place(clock)
	cells := strings.Split(strings.Repeat("█", full)+strings.Repeat("░", width-full), "")
	for _, f := range faults {
		cells[min(place(f), width-1)] = signFailure
	}
	return strings.Join(cells, "")
}

// servers shows which servers are there.
func servers(places []wire.PlaceProgress) string {
	line := "servers   "
	for _, p := range places {
		if p.Role == wire.RoleServer {
			line += sign(p.State)
		}
	}
	return line
}
