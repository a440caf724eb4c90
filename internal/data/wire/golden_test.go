package wire

import (
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/packed"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func ptr[T any](v T) *T { return &v }

// sample is one message with every field set, and the function that decodes its payload.
type sample struct {
	name  string
	frame Frame
	want  any              // the decoded payload; nil if there is none
	parse func(*Frame) any // decodes the payload
}

func control(name string, kind Kind, v any) sample {
	return sample{name, Control(kind, v), v, func(f *Frame) any {
		out := reflect.New(reflect.TypeOf(v))
		if err := ParseControl(f, out.Interface()); err != nil {
			return err
		}
		return out.Elem().Interface()
	}}
}

// data returns a frame as sent between workers and servers.
func data(name string, kind Kind, flags uint16, payload []byte, want any, parse func(*Frame) any) sample {
	h := Header{
		Kind: kind, Flags: flags, Generation: 3, Epoch: 5, Clock: 1234, Request: 77,
		Slot: 2, Incarnation: 4, Shard: 6, Part: 1, Parts: 2,
	}
	return sample{name, Frame{Header: h, Payload: payload}, want, parse}
}

// clocks turns an update into one of several clocks.
func clocks(s sample, n uint16) sample {
	s.frame.Clocks = n
	return s
}

// entry is a log entry with the payload of a control frame.
func entry(name string, kind Kind, v any) sample {
	c := control(name, kind, v)
	return data(name, kind, 0, c.frame.Payload, v, c.parse)
}

// blocks is an update as ReadBlocks returns it.
type blocks struct {
	Blocks []Block
	State  []byte
}

func parseBasis(f *Frame) any {
	b := ReadBlocks(f.Payload)
	if b.Next() || b.Err() != nil {
		return b.Err()
	}
	return [2]perdure.Clock{b.Basis, b.Lag}
}

func parseAlone(f *Frame) any {
	b := ReadBlocks(f.Payload)
	if b.Next() || b.Err() != nil {
		return b.Err()
	}
	return b.InOutage
}

// weight is the weight of an update for a table.
type weight struct {
	Table  perdure.TableID
	Weight float64
}

func parseWeight(f *Frame) any {
	b := ReadBlocks(f.Payload)
	switch there := b.Next(); {
	case b.Err() != nil:
		return b.Err()
	case !there || b.Count != 0 || b.Sent != nil:
		return "no weight"
	}
	return weight{b.Table, b.Weight}
}

func parseBlocks(f *Frame) any {
	var u blocks
	state, err := readAll(f.Payload, func(b *Block) error {
		c := *b
		c.Values = slices.Clone(b.Values)
		u.Blocks = append(u.Blocks, c)
		return nil
	})
	if err != nil {
		return err
	}
	u.State = state
	return u
}

func parseRows(f *Frame) any {
	var r Rows
	rest, err := ParseRows(f.Payload, &r)
	if err != nil || len(rest) > 0 {
		return fmt.Errorf("%d bytes left: %v", len(rest), err)
	}
	return r
}

func parseAnswer(f *Frame) any {
	var a Answer
	if err := ParseAnswer(f, &a); err != nil {
		return err
	}
	return wholeOf(&a)
}

// wholeOf returns an answer, with its values unpacked if necessary.
func wholeOf(a *Answer) any {
	if !a.IsPacked() {
		return *a
	}
	values, err := a.Unpack(2, packedValues/2, new([]float32))
	if err != nil {
		return err
	}
	return Answer{State: a.State, Values: values}
}

// packedValues is the number of values in the samples of packed values.
const packedValues = 1030

// mostlyZeros returns packedValues values, of which four are transmitted, one of them −0.
func mostlyZeros() []float32 {
	v := make([]float32, packedValues)
	v[0], v[63], v[64], v[packedValues-1] = 0.5, float32(math.Copysign(0, -1)), -2, 3
	return v
}

// roundedBlock returns the encoding of a block with rounded values.
func roundedBlock(b *Block, e perdure.Encoding) []byte {
	values := packed.AppendEncoded(nil, e, len(b.Values)/b.Count, b.Values)
	return AppendEncodedBlock(nil, &b.Rows, e, len(b.Values), values)
}

// rounded returns a block with its values as their encoding rounds them.
func rounded(b Block, e perdure.Encoding) Block {
	b.Values = slices.Clone(b.Values)
	packed.Round(b.Values, e, len(b.Values)/b.Count)
	return b
}

// packedOf appends packed values to the head of an answer.
func packedOf(head []byte, values []float32) []byte {
	all, _ := packed.Append(head, values)
	return all
}

func parsePush(f *Frame) any {
	var p Push
	if err := ParsePush(f, &p); err != nil {
		return err
	}
	if p.IsPacked() {
		return wholeOf(&p.Answer)
	}
	return p
}

func parseCounts(f *Frame) any {
	c, err := ParseCounts(f.Payload)
	if err != nil {
		return err
	}
	return c
}

func raw(f *Frame) any { return string(f.Payload) }

var sampleTable = perdure.TableSpec{
	Name: "w", Rows: 785, Dim: 10,
	Rule: perdure.Rule{
		Kind: perdure.RuleSGD, Rate: 0.5, Schedule: perdure.ScheduleStep, Every: 100,
		Factor: 0.25,
	},
	Init:        perdure.Init{Kind: perdure.InitNormal, Scale: 0.125},
	Consistency: perdure.Consistency{Kind: perdure.SSP, Staleness: 2},
	Sparse:      true, Evict: 50, NonFinite: perdure.AllowNonFinite, Distance: perdure.DistanceTV,
	Combine:   perdure.CombineMean,
	Encoding:  perdure.EncodingInt8,
	Transient: true, Whole: true, Shard: 3,
}

var sampleJob = perdure.JobSpec{
	ID: "job-1", Workload: "softmax", Seed: 7, Slots: 3, Servers: 2, Shards: 4, Clocks: 500,
	Consistency: perdure.Consistency{Kind: perdure.BSP},
	Recovery:    perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 20},
	Alarms:      []perdure.Clock{100, 200}, AwaitExport: true,
}

var exitedSample = Exited{
	Role: RoleWorker, Index: 2, PID: 4711, How: "killed", Host: "h", Failed: true, Final: true, Code: 2, Detail: "why",
	Output: "lines", Vacated: true,
}

// at returns the clocks of two slots.
func at(first perdure.Clock) protocol.SlotClocks { return protocol.SlotClocks{first, first + 10} }

var sampleReport = Report{
	Slot: 2, Generation: 3, Clock: 64, TrainLoss: ptr(0.5), EndAfter: true, Tentative: true, Continue: true,
	TestLoss: ptr(0.75), TestAccuracy: ptr(0.875), TrainRMSE: ptr(0.25), TestRMSE: ptr(0.125), Backlog: true,
	Untrained:   &Untrained{Left: ptr(int64(19)), Total: 50, Unit: UnitSteps, Unsent: 5},
	SavesOnTerm: true, Warning: "one batch ahead",
}

func controlSamples() []sample {
	samples := []sample{
		control("hello", KindHello, Hello{
			Role: RoleServer, Job: "job-1", Index: 1, Process: "server:1#2", PID: 4711,
			Addr: "127.0.0.1:9", Incarnation: 2, Revision: 57, Zone: "a", SavesAtCuts: true, Grow: true,
			WantsSettings: true, DisplayName: "b", Secret: "00ff", Nonce: "n", Ticket: "11ee", Version: "v1.2",
		}),
		control("welcome", KindWelcome, Welcome{
			Job: sampleJob, Index: 1, Incarnation: 2, Ticket: "11ee", Store: "s",
			StoreIsLocal: true, RunSettings: []byte(`{"a":7}`), Dir: "/a",
		}),
		control("refusal", KindRefuse, Refusal{
			Reason: "the slot was taken", Fenced: true, JobEnded: true, JobDone: true, JobFailed: true, Temporary: true,
		}),
		control("view", KindView, protocol.View{
			Revision: 9, Generation: 3, Cut: 40, End: 500, Pause: true, Durable: 60, Named: 70, Done: true,
			Tentative: true, Roster: 2, Hold: 11, CutClocks: at(20), DurableClocks: at(40), NamedClocks: at(45),
			Tables: []perdure.TableSpec{sampleTable},
			Shards: []protocol.ShardView{{
				Holder: protocol.Holder{Server: 1, Incarnation: 2, Addr: "127.0.0.1:9", Since: 7}, Epoch: 5,
				Followers: []protocol.Holder{{Server: 2, Incarnation: 1, Addr: "127.0.0.1:10", Since: 8}},
				Joining:   &protocol.Holder{Server: 0, Incarnation: 3, Addr: "127.0.0.1:8", Since: 9},
				Base:      []perdure.Clock{1, 2, 3}, Lost: true, Restored: true,
			}, {Holder: protocol.Holder{Server: -1}}},
			Slots: []protocol.SlotView{{
				Incarnation: 4, Decided: true, Start: 41, Settled: true,
				Interval: protocol.Interval{From: 30, Until: 90}, Left: true,
			}, {}},
		}),
		control("view-delta", KindViewDelta, protocol.ViewDelta{
			Base: 8, Revision: 9, Generation: 3, Cut: 40, End: 500, Pause: true, Durable: 60, Named: 70, Done: true,
			Tentative: true, Roster: 2, Hold: 11, CutClocks: at(20), DurableClocks: at(40), NamedClocks: at(45),
			Tables: []perdure.TableSpec{sampleTable},
			Shards: []protocol.ShardChange{{Shard: 3, ShardView: protocol.ShardView{
				Holder: protocol.Holder{Server: 1, Incarnation: 2, Addr: "127.0.0.1:9", Since: 7}, Epoch: 5,
				Followers: []protocol.Holder{{Server: 2, Incarnation: 1, Addr: "127.0.0.1:10", Since: 8}},
				Joining:   &protocol.Holder{Server: 0, Incarnation: 3, Addr: "127.0.0.1:8", Since: 9},
				Base:      []perdure.Clock{1, 2, 3}, Lost: true, Restored: true,
			}}},
			Slots: []protocol.SlotChange{{Slot: 2, SlotView: protocol.SlotView{
				Incarnation: 4, Decided: true, Start: 41,
				Settled: true, Interval: protocol.Interval{From: 30, Until: 90}, Left: true,
			}}},
		}),
		control("table", KindTable, sampleTable),
		control("report", KindReport, sampleReport),
		control("event", KindEvent, Event{
			Kind: "rollback", Target: "server:0", Clock: 60, UnixNs: 1700000000000000000,
			Text: "rolled back", UpdatesLost: 1, ClocksRedone: 2, Output: "lines", Vacated: true,
		}),
		control("order", KindOrder, Order{Kind: "kill", Target: "server:0", PID: 4711, Spec: "kill:server:0@clock:5"}),
		control("exited", KindExited, exitedSample),
		control("progress", KindProgress, Progress{
			Revision: 9, Generation: 3, Clock: 61, End: 500, Durable: 60, Complete: true, Done: true, Closed: true,
			Serving: true, SavesAtCuts: true, UpdatesApplied: 3, UpdatesExpected: 4, UpdatesLost: 1, ClocksRedone: 2,
			Saving: &protocol.Saving{Failures: 2, Ran: 61.5, Interval: 9.5, Why: "Young"},
			Members: []MemberProgress{{
				Role: RoleServer, Index: 1, Process: "server:1#2", PID: 4711, Incarnation: 2, State: "alive", Clock: 61,
				Problem: "disk full",
				Worker:  &perdure.WorkerCounters{UpdatesSent: 1}, Interval: protocol.Interval{From: 30, Until: 90},
				Awaited: true,
			}},
		}),
	}
	return append(samples, statusSamples()...)
}

// statusSamples are statuses of servers and workers for the coordinator.
func statusSamples() []sample {
	return []sample{
		control("status-server", KindStatus, protocol.ServerDelta{
			Number: 2, Revision: 9, Draining: true, NoticeMs: 25_000, WaitReason: "it is full",
			Unreachable: []string{"10.0.0.7:9"}, Hold: protocol.LockHold{Shard: -1, Ms: 1200, LongestMs: 2500},
			Resources: protocol.Resources{Goroutines: 17, HeapBytes: 4096},
			Shards: []protocol.ShardDelta{{Unfenced: []perdure.Slot{3, 5}, ShardStatus: protocol.ShardStatus{
				Shard: 1, Generation: 3, Epoch: 5, Since: 7, Ready: true, Joined: true, Roster: 2,
				Cuts:           protocol.CutStatus{Named: 70, Missed: true, Hold: 11, Ticked: []perdure.Clock{45, 60}},
				ResendComplete: true, MinClock: 61, Seq: 180, Applied: []perdure.Clock{61, 62},
				Bytes: 1 << 30, Problem: "disk full",
				Fences: []protocol.Fence{{
					Slot: 2, Incarnation: 4,
					Counts: protocol.Counts{Staged: 63, Ticked: 62, Applied: 61}, Carried: true,
				}},
				Segments: []protocol.Segment{
					{
						Cut:   60,
						File:  "a.segment",
						Bytes: 4096,
						CRC:   0xdeadbeef,
						Seq:   180,
						Base:  []protocol.SegmentFile{{File: "b.segment", Bytes: 8192, CRC: 7}},
						States: []protocol.SegmentFile{
							{File: "state-s00001-g000001-i000002-n000000000003", Bytes: 9, CRC: 8},
						},
					},
				},
				States: []string{"state-s00001-g000001-i000002-n000000000004"}, PendingStates: []string{"a"},
				Yielded: true, SaveSeconds: 0.5, SaveBytes: 4096, Unread: ptr(int64(11)),
			}}, {ShardStatus: protocol.ShardStatus{Shard: 3, Generation: 3, Epoch: 1}}},
			Gone: []perdure.ShardID{2},
		}),
		control(
			"status-server-same",
			KindStatus,
			protocol.ServerDelta{
				Number: 3, Revision: 9,
				Resources: protocol.Resources{Goroutines: 17, HeapBytes: 4096},
			},
		),
		control("status-worker", KindWorkerStatus,
			protocol.WorkerDelta{
				Number: 1, HasAcked: true, HasOutage: true, HasCounters: true,
				WorkerStatus: protocol.WorkerStatus{
					Unreachable: []string{"10.0.0.6:9", "10.0.0.7:9"},
					WaitReason:  "it is full", Revision: 9, Generation: 3, Clock: 64, Finished: true, NeedsCut: true,
					Acked:     []protocol.AckedClock{{Shard: 1, Epoch: 5, Applied: 61}},
					KeptBytes: 4096, SaveSeconds: 1.5, Outage: &perdure.WorkerOutage{
						Shards: []perdure.ShardID{1, 4}, Seconds: 2.5,
						Bytes: 512,
					},
					Counters: perdure.WorkerCounters{
						UpdatesSent: 1, BytesPushed: 3, BytesPulled: 4, Samples: 5,
						ClockDifferential: map[int64]int64{-1: 10, 0: 2}, ReadLag: map[int64]int64{0: 12},
					},
					Resources: protocol.Resources{Goroutines: 18, HeapBytes: 8192},
				},
			}),
	}
}

// storedIDs is a response to a scan as ParseIDs returns it.
type storedIDs struct {
	Stored int
	IDs    []perdure.RowID
}

func parseIDs(f *Frame) any {
	stored, ids, err := ParseIDs(f.Payload)
	if err != nil {
		return err
	}
	return storedIDs{stored, ids}
}

func dataSamples() []sample { return append(plainSamples(), roundedSamples()...) }

// roundedSamples are those with rounded values.
func roundedSamples() []sample {
	a := Block{Rows{Table: 1, First: 100, Count: 2}, []float32{1, -2.5, 3e-10, 4e10}}
	b := Block{Rows{Table: 2, Count: 3, IDs: []perdure.RowID{7, 3, 1 << 40}}, []float32{0.5, 1.5, 2.5}}
	zeros := Block{Rows{Table: 4, Count: 2, IDs: []perdure.RowID{9, 2}}, mostlyZeros()}
	state := State{Seq: 99, WaitedMicros: 1500, Applied: []perdure.Clock{10, 11, 12}}
	return []sample{
		data("update-rounded", KindUpdate, 0, slices.Concat(roundedBlock(&a, perdure.EncodingBF16),
			roundedBlock(&b, perdure.EncodingInt8), roundedBlock(&zeros, perdure.Encoding2Bit)),
			blocks{Blocks: []Block{
				rounded(a, perdure.EncodingBF16), rounded(b, perdure.EncodingInt8),
				rounded(zeros, perdure.Encoding2Bit),
			}}, parseBlocks),
		data("rows-bf16", KindRows, FlagBF16,
			packed.AppendEncoded(AppendState(nil, &state), perdure.EncodingBF16, packedValues/2, zeros.Values),
			Answer{State: state, Values: rounded(zeros, perdure.EncodingBF16).Values}, parseAnswer),
		data("rows-int8", KindRows, FlagInt8,
			packed.AppendEncoded(AppendState(nil, &state), perdure.EncodingInt8, packedValues/2, zeros.Values),
			Answer{State: state, Values: rounded(zeros, perdure.EncodingInt8).Values}, parseAnswer),
	}
}

func plainSamples() []sample {
	counts := protocol.Counts{Staged: 1236, Ticked: 1235, Applied: 1234, Seen: 1233}
	run := Rows{Table: 1, First: 100, Count: 2}
	list := Rows{Table: 2, Count: 3, IDs: []perdure.RowID{7, 3, 1 << 40}}
	values := []float32{1, -2.5, 3e-10, 4e10}
	a := Block{Rows: run, Values: values}
	b := Block{Rows: list, Values: []float32{0.5, 1.5, 2.5}}
	update := AppendStateBlock(AppendBlock(AppendBlock(nil, &a), &b), []byte("state"))
	state := State{Seq: 99, WaitedMicros: 1500, Applied: []perdure.Clock{10, 11, 12}}
	answer := AppendFloats(AppendState(nil, &state), values)
	zeros := Block{Rows{Table: 4, Count: 2, IDs: []perdure.RowID{9, 2}}, mostlyZeros()}
	half, _ := AppendPackedBlock(nil, &zeros)
	return []sample{
		data("open", KindOpen, 0, nil, "", raw),
		data("opened", KindOpened, 0, AppendCounts(nil, counts), counts, parseCounts),
		data("get-run", KindGet, 0, AppendRows(nil, &run), run, parseRows),
		data("get-list", KindGet, FlagSubscribe, AppendRows(nil, &list), list, parseRows),
		data("rows", KindRows, 0, answer, Answer{State: state, Values: values}, parseAnswer),
		data("update", KindUpdate, FlagTicked, update, blocks{[]Block{a, b}, []byte("state")}, parseBlocks),
		data("rows-packed", KindRows, FlagPacked, packedOf(AppendState(nil, &state), zeros.Values),
			Answer{State: state, Values: zeros.Values}, parseAnswer),
		data("push-packed", KindPush, FlagPacked, packedOf(AppendPushHead(nil, &state, &zeros.Rows), zeros.Values),
			Answer{State: state, Values: zeros.Values}, parsePush),
		data("update-packed", KindUpdate, 0, AppendBlock(half, &a), blocks{Blocks: []Block{zeros, a}}, parseBlocks),
		data("update-basis", KindUpdate, 0, AppendBasisBlock(nil, 1200, 7), [2]perdure.Clock{1200, 7}, parseBasis),
		data("update-alone", KindUpdate, 0, AppendOutageBlock(nil), true, parseAlone),
		data("update-weight", KindUpdate, 0, AppendWeightBlock(nil, 7, 4096.5), weight{7, 4096.5},
			parseWeight),
		data("update-empty", KindUpdate, 0, nil, blocks{}, parseBlocks),
		clocks(data("update-clocks", KindUpdate, 0, update, blocks{[]Block{a, b}, []byte("state")}, parseBlocks), 16),
		data("tick", KindTick, 0, nil, "", raw),
		data("ack", KindAck, 0, AppendCounts(nil, counts), counts, parseCounts),
		data("load", KindLoad, 0, nil, "", raw),
		data("state", KindState, 0, []byte("state"), "state", raw),
		data("state-none", KindState, FlagNone, nil, "", raw),
		data("moved", KindMoved, 0, nil, "", raw),
		data("sync", KindSync, 0, nil, "", raw),
		data("echo", KindEcho, 0, nil, "", raw),
		data("hold", KindHold, 0, nil, "", raw),
		data("scan", KindScan, 0, AppendRows(nil, &run), run, parseRows),
		data("push", KindPush, FlagLast, AppendFloats(AppendPushHead(nil, &state, &list), values[:3]),
			Push{Answer{State: state, Values: values[:3]}, list}, parsePush),
		data("push-empty", KindPush, FlagLast, AppendPushHead(nil, &state, &Rows{}), Push{Answer: Answer{State: state}},
			parsePush),
		data("drop", KindUnsubscribe, 0, AppendRows(nil, &list), list, parseRows),
		data("saw", KindSeen, 0, nil, "", raw),
		data("ids", KindIDs, 0, AppendIDs(nil, 1000, list.IDs), storedIDs{1000, list.IDs}, parseIDs),
		data("open-writes", KindOpen, FlagWriteOnly, nil, "", raw),
		data("follow", KindFollow, 0, nil, "", raw),
		data("have", KindHave, FlagNone, nil, "", raw),
		data("committed", KindCommitted, 0, nil, "", raw),
		data("snapshot", KindSnapshot, FlagLast, []byte("piece"), "piece", raw),
		data("level", KindCaughtUp, 0, nil, "", raw),
		data("fence", KindFence, 0, nil, "", raw),
		data("decide", KindDecide, 0, nil, "", raw),
		data("end", KindEnd, 0, nil, "", raw),
		data("cut", KindCut, 0, nil, "", raw),
		data("base", KindBase, 0, AppendState(nil, &state), Answer{State: state}, parseAnswer),
		entry("add-table", KindAddTable, sampleTable),
		entry("roster", KindMembership, []protocol.Interval{{}, {From: 30, Until: 90}}),
		entry("pass-cut", KindPassCut, protocol.Segment{
			Cut: 60, File: "a.segment", Bytes: 4096, CRC: 0xdeadbeef,
			Seq: 180,
		}),
	}
}

func samples() []sample { return append(controlSamples(), dataSamples()...) }

// fields names the parts of a header for readers of a golden file.
var fields = []struct {
	name  string
	bytes int
}{
	{"magic", 4},
	{"version", 1},
	{"kind", 1},
	{"flags", 2},
	{"payload bytes", 4},
	{"crc32c", 4},
	{"generation", 8},
	{"epoch", 8},
	{"clock", 8},
	{"request", 8},
	{"slot", 4},
	{"incarnation", 4},
	{"shard", 4},
	{"part", 2},
	{"parts", 2},
}

// dump prints a frame's bytes in readable form: one line per field, then the payload with 16 bytes per line.
func dump(b []byte) string {
	var out strings.Builder
	at := 0
	for _, f := range fields {
		fmt.Fprintf(&out, "%04x  % -24x %s\n", at, b[at:at+f.bytes], f.name)
		at += f.bytes
	}
	for ; at < len(b); at += 16 {
		line := b[at:min(at+16, len(b))]
		text := strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '.'
			}
			return r
		}, string(latin(line)))
		fmt.Fprintf(&out, "%04x  % -48x |%s|\n", at, line, text)
	}
	return out.String()
}

func latin(b []byte) []rune {
	out := make([]rune, len(b))
	for i, c := range b {
		out[i] = rune(c)
	}
	return out
}

// undump parses the output of dump.
func undump(text string) (out []byte, err error) {
	at := 0
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		n := 16
		if i < len(fields) {
			n = fields[i].bytes
		}
		digits, _, _ := strings.Cut(line[6:], "|")
		words := strings.Fields(digits)
		b, err := hex.DecodeString(strings.Join(words[:min(n, len(words))], ""))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if want := fmt.Sprintf("%04x", at); line[:4] != want {
			return nil, fmt.Errorf("line %d starts at %s, want %s", i+1, line[:4], want)
		}
		out, at = append(out, b...), at+len(b)
	}
	return out, nil
}

// TestGolden: the encoding of every kind of message is fixed and decodes to what was sent. Python and later versions
// are tested against the same files.
func TestGolden(t *testing.T) {
	kinds := map[Kind]bool{}
	for _, s := range samples() {
		kinds[s.frame.Kind] = true
		t.Run(s.name, func(t *testing.T) {
			path := filepath.Join("testdata", s.name+".golden")
			got := dump(Append(nil, &s.frame))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(golden) {
				t.Errorf("the encoding has changed (a change needs a new version):\ngot\n%s\nwant\n%s", got, golden)
			}
			b, err := undump(string(golden))
			if err != nil {
				t.Fatal(err)
			}
			var f Frame
			if rest, err := Decode(b, &f); err != nil || len(rest) > 0 || f.Header != s.frame.Header {
				t.Fatalf("decoded %+v, %d bytes left, %v; want %+v", f.Header, len(rest), err, s.frame.Header)
			}
			if said := s.parse(&f); !reflect.DeepEqual(said, s.want) {
				t.Errorf("decoded payload %+v, want %+v", said, s.want)
			}
		})
	}
	for k := KindHello; k <= KindIDs; k++ {
		if known := k <= KindWorkerStatus || k >= KindOpen; known && !kinds[k] {
			t.Errorf("kind %d has no golden file", k)
		}
	}
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(files) != len(samples()) {
		t.Errorf("%d golden files for %d samples, %v", len(files), len(samples()), err)
	}
}

// TestSamplesAreFull: the samples set every field of the messages, so that the golden files cover them all.
func TestSamplesAreFull(t *testing.T) {
	for _, s := range controlSamples() {
		if s.name == "status-supervisor" || strings.HasPrefix(s.name, "status-") {
			continue // one of three
		}
		v := reflect.ValueOf(s.want)
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; v.Field(i).IsZero() {
				t.Errorf("%s: field %s is not set", s.name, name)
			}
		}
	}
}
