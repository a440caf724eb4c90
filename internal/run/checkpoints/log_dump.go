package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/humanize"
)

// LogSelection selects the records that DumpLog shows, as flags of perdure log dump.
type LogSelection struct {
	Shard int                `required:"" help:"The shard." placeholder:"N"`
	From  updatelog.Position `help:"@dump_from" placeholder:"N"`             // 0: the first one stored
	Most  *int               `name:"most" help:"@dump_most" placeholder:"N"` // nil: all
}

// DumpLog shows the records of one shard's stream.
func DumpLog(ctx context.Context, out io.Writer, p LogLocation, part LogSelection, asJSON bool) error {
	if part.Most != nil && *part.Most < 1 {
		return perdure.Usagef("invalid --most %d; choose 1 or more, or omit it to see all", *part.Most)
	}
	i, streams, err := p.open(ctx)
	if err != nil {
		return err
	}
	streams = slices.DeleteFunc(streams, func(s updatelog.Stream) bool { return s.Shard != part.Shard })
	switch {
	case len(streams) == 0:
		err = perdure.Usagef("this log has no shard %d; see perdure log verify", part.Shard)
	case len(streams) > 1:
		err = perdure.Usagef("%d jobs have a shard %d in this log; choose one with --job", len(streams), part.Shard)
	default:
		err = dumpStream(ctx, humanize.NewPrinter(out, asJSON), i, streams[0], part)
	}
	return errors.Join(err, i.Close())
}

var errEnoughShown = errors.New("enough was shown")

// logRecord is the JSON form of a record.
type logRecord struct {
	Position updatelog.Position `json:"position"`
	Stored   time.Time          `json:"stored"`
	Producer string             `json:"producer"` // hexadecimal
	Group    uint64             `json:"group"`
	Part     int                `json:"part"` // from 1
	Parts    int                `json:"parts"`
	Bytes    int                `json:"bytes"`
	Entries  []logEntry         `json:"entries"` // entries completed by this record
}

type logEntry struct {
	Resume updatelog.Position `json:"resume"`
	Bytes  int                `json:"bytes"`
	Frames []logFrame         `json:"frames"` // empty if the entry does not consist of the job's messages
}

// dumpStream shows a part of a stream. Records before a damaged one are shown in any case.
func dumpStream(
	ctx context.Context, tell *humanize.Printer, i *updatelog.Inspector, s updatelog.Stream, part LogSelection,
) error {
	all := []logRecord{}
	err := i.Records(ctx, s, func(r updatelog.Record) error {
		if r.Position < part.From {
			return nil
		}
		if part.Most != nil && len(all) == *part.Most {
			return errEnoughShown
		}
		one := logRecord{
			Position: r.Position, Stored: r.Stored.UTC(), Producer: fmt.Sprintf("%016x", r.Producer),
			Group: uint64(r.Group), Part: int(r.Index) + 1, Parts: int(r.Count), Bytes: r.Bytes, Entries: []logEntry{},
		}
		tell.Line("%d %s producer %s group %d part %d/%d %d bytes", one.Position, one.Stored.Format(time.RFC3339Nano),
			one.Producer, one.Group, one.Part, one.Parts, one.Bytes)
		for _, e := range r.Entries {
			x := logEntry{Resume: e.Resume, Bytes: len(e.Payload), Frames: framesOf(e.Payload)}
			tell.Line("    %s; resume from %d", x, x.Resume)
			one.Entries = append(one.Entries, x)
		}
		all = append(all, one)
		return nil
	})
	if errors.Is(err, errEnoughShown) {
		err = nil
	}
	return errors.Join(tell.End(all), err)
}

// kindNames are the names of the messages that a log contains.
var kindNames = map[wire.Kind]string{
	wire.KindUpdate: "update", wire.KindTick: "tick", wire.KindFence: "fence", wire.KindDecide: "decide",
	wire.KindEnd:      "end",
	wire.KindAddTable: "add table", wire.KindBase: "base", wire.KindPassCut: "pass cut", wire.KindMembership: "roster",
	wire.KindLife: "life",
}

// logFrame is the JSON form of a message in a log.
type logFrame struct {
	Kind        string `json:"kind"`
	Slot        int    `json:"slot"`
	Incarnation uint64 `json:"incarnation"`
	Clock       int64  `json:"clock"`
	Last        int64  `json:"last_clock"` // equal to Clock for a single clock
	Part        int    `json:"part"`       // from 1
	Parts       int    `json:"parts"`
	Generation  uint64 `json:"generation"`
	Bytes       int    `json:"bytes"`
}

// framesOf decodes the frames of an entry. The result is empty if the entry contains other data.
func framesOf(entry []byte) []logFrame {
	all := []logFrame{}
	for rest := entry; len(rest) > 0; {
		var f wire.Frame
		var err error
		if rest, err = wire.Decode(rest, &f); err != nil {
			return []logFrame{}
		}
		name, ok := kindNames[f.Kind]
		if !ok {
			name = fmt.Sprintf("message %d", f.Kind)
		}
		last := int64(f.Clock)
		if f.Clocks > 1 {
			last = int64(f.Until()) - 1
		}
		all = append(all, logFrame{
			Kind: name, Slot: int(f.Slot), Incarnation: uint64(f.Incarnation), Clock: int64(f.Clock), Last: last,
			Part: int(f.Part) + 1, Parts: int(max(f.Parts, 1)), Generation: uint64(f.Generation),
			Bytes: f.PayloadBytes(),
		})
	}
	return all
}

// String describes the frames of an entry, or its length if there are none.
func (e logEntry) String() string {
	if len(e.Frames) == 0 {
		return fmt.Sprintf("%d bytes", e.Bytes)
	}
	var parts []string
	for _, f := range e.Frames {
		clocks := fmt.Sprintf("clock %d", f.Clock)
		if f.Last != f.Clock {
			clocks = fmt.Sprintf("clocks %d to %d", f.Clock, f.Last)
		}
		parts = append(parts, fmt.Sprintf("%s slot %d incarnation %d %s part %d/%d generation %d, %d bytes",
			f.Kind, f.Slot, f.Incarnation, clocks, f.Part, f.Parts, f.Generation, f.Bytes))
	}
	return strings.Join(parts, "; ")
}
