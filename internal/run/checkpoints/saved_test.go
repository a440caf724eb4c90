package checkpoints

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/slotstate"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/safetensors"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
)

// savedTables are those of a program that uses DataParallel.
var savedTables = []perdure.TableSpec{
	{Name: "weights.names", Sparse: true, Dim: 1024, Rule: perdure.Rule{Kind: perdure.RuleSet}, Consistency: bsp},
	{
		Name: "gradients", Rows: 2, Dim: 2, Rule: perdure.Rule{Kind: perdure.RuleSet}, Consistency: bsp,
		Combine: perdure.CombineSum, Transient: true,
	},
}

// described returns the values of the row that describes one trained parameter w.
func described() (row []float32) {
	text := `{"version":1,"others":[],"tensors":[` +
		`{"name":"w","keys":["w"],"kind":"trained","type":"float32","shape":[2]}]}`
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	b = append(binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE([]byte(text))), text...)
	b = append(b, make([]byte, 2048-len(b))...)
	for i := 0; i < len(b); i += 2 {
		row = append(row, float32(binary.LittleEndian.Uint16(b[i:])))
	}
	return row
}

// stateOf returns the state of a program that has made some steps. All weights are that number.
func stateOf(steps int, over bool) []byte {
	tree := fmt.Sprintf(`{"dict":[["own",{"dict":[["step",%d],["over",%t]]}],["shared",{"dict":[["parameters",`+
		`[{"tensor":0,"type":"torch.float32","shape":[2]}]]]}],["buffers",[]]]}`, steps, over)
	b := binary.LittleEndian.AppendUint64([]byte("PERDURE2"), uint64(len(tree)))
	return append(append(b, tree...), floats([]float32{float32(steps), float32(steps)})...)
}

// addSaved adds the checkpoint of a cut with the packed state of slot 0.
func addSaved(t *testing.T, to store.Store, cut perdure.Clock, state []byte) {
	t.Helper()
	m := checkpoint.Manifest{Job: testJob, Generation: 1, Cut: cut, Tables: savedTables, SavedAt: saved}
	for shard := range perdure.ShardID(2) {
		s := &checkpoint.Segment{
			Job: testJob.ID, Generation: 1, Epoch: 1, Cut: cut, Shard: shard, Applied: []perdure.Clock{cut},
			Tables: []checkpoint.TableRows{
				{Spec: savedTables[0], Image: table.Image{Planes: [][][]float32{{}}}},
				{Spec: savedTables[1], First: int64(shard), Image: table.Image{
					Rows: 1, Planes: [][][]float32{{{1, 2}}},
				}},
			},
		}
		if shard == 0 {
			s.Tables[0].Image = table.Image{Rows: 1, IDs: [][]perdure.RowID{{0}}, Planes: [][][]float32{{described()}}}
			if state != nil {
				s.States = [][]byte{state}
			}
		}
		ref, err := checkpoint.WriteSegment(to, s)
		must(t, err)
		m.Segments = append(m.Segments, ref)
	}
	must(t, checkpoint.Publish(to, m))
}

// putState stores a state as an object of its own, and returns its packed reference.
func putState(t *testing.T, to store.Store, number uint64, clock perdure.Clock, state []byte) []byte {
	t.Helper()
	k := slotstate.Key{Generation: 1, Incarnation: 1, Number: number}
	ref, err := store.PutState(t.Context(), to, k, int64(len(state)), store.WriteBytes(state))
	must(t, err)
	return ref.Pack(clock)
}

// stored creates an empty store of checkpoints.
func stored(t *testing.T) (*Location, *disk.Memory) {
	t.Helper()
	fsys := disk.NewMemory()
	must(t, fsys.MkdirAll("c"))
	return &Location{Store: store.NewDir(fsys, "c")}, fsys
}

// weightsIn returns the values of w, and the steps in the metadata.
func weightsIn(t *testing.T, file string) (w []float32, steps string) {
	t.Helper()
	f, err := os.Open(file)
	must(t, err)
	info, err := f.Stat()
	must(t, err)
	tensors, meta, err := safetensors.Read(f, info.Size())
	must(t, errors.Join(err, f.Close()))
	if len(tensors) != 1 || tensors[0].Name != "w" {
		t.Fatalf("the file has the tensors %v", tensors)
	}
	return tensors[0].Data, meta["steps"]
}

// TestExportSaved exports weights that are in the state of a slot: in a segment or in an object of its own, at the
// beginning of a step or after the last one.
func TestExportSaved(t *testing.T) {
	for _, c := range []struct{ object, over bool }{{}, {over: true}, {object: true}, {object: true, over: true}} {
		f, _ := stored(t)
		state := stateOf(18, c.over)
		if c.object {
			addSaved(t, f.Store, 20, putState(t, f.Store, 1, 19, state))
		} else {
			addSaved(t, f.Store, 20, slotstate.Pack(state, 19))
		}
		to := filepath.Join(t.TempDir(), "m")
		var out bytes.Buffer
		must(t, f.Export(&out, to, false, true))
		if w, steps := weightsIn(t, to); fmt.Sprint(w) != "[18 18]" || steps != "18" {
			t.Errorf("%+v: weights %v after %s steps", c, w, steps)
		}
		var e exportResult
		must(t, json.Unmarshal(out.Bytes(), &e))
		if len(e.Notes) == 0 != c.over || !c.over && !strings.Contains(e.Notes[0], "18 steps") {
			t.Errorf("%+v: notes %q", c, e.Notes)
		}
	}
}

// TestExportDamagedState checks that damage to the object with a state is found wherever it is. The error names the
// object, and no file is written. An older checkpoint is exported if none was chosen.
func TestExportDamagedState(t *testing.T) {
	state := stateOf(18, true)
	name := slotstate.Key{Generation: 1, Incarnation: 1, Number: 2}.Name()
	size := 24 + len(state) + 4
	for at := -1; at < size; at++ {
		f, fsys := stored(t)
		addSaved(t, f.Store, 10, putState(t, f.Store, 1, 9, stateOf(8, false)))
		addSaved(t, f.Store, 20, putState(t, f.Store, 2, 19, state))
		if at < 0 {
			must(t, fsys.Remove("c/"+name))
		} else {
			write(t, fsys, name, flipped(at)(read(t, fsys, name)))
		}
		to := filepath.Join(t.TempDir(), "m")
		f.Clock = new(perdure.Clock(20))
		err := f.Export(io.Discard, to, false, false)
		if !oneLine(err, name) || !strings.Contains(err.Error(), "@10") {
			t.Fatalf("byte %d: %v", at, err)
		}
		if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("byte %d: the file exists: %v", at, err)
		}
		f.Clock = nil
		var out bytes.Buffer
		must(t, f.Export(&out, to, false, false))
		if w, _ := weightsIn(t, to); w[0] != 8 || !strings.Contains(out.String(), name) {
			t.Fatalf("byte %d: weights %v, output %s", at, w, &out)
		}
	}
}

// TestExportWithoutState checks checkpoints without a state of their last clock, and with one that is not of
// DataParallel.
func TestExportWithoutState(t *testing.T) {
	for name, c := range map[string]struct {
		state []byte
		usage bool
	}{
		"no state":     {nil, true},
		"an older one": {slotstate.Pack(stateOf(17, false), 18), true},
		"another one":  {slotstate.Pack([]byte("own"), 19), false},
	} {
		f, _ := stored(t)
		addSaved(t, f.Store, 20, c.state)
		to := filepath.Join(t.TempDir(), "m")
		err := f.Export(io.Discard, to, false, false)
		if !oneLine(err, "") || errors.Is(err, perdure.ErrUsage) != c.usage {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExportSavedRun checks that a run that has ended exports the checkpoint of its end, and no other one.
func TestExportSavedRun(t *testing.T) {
	run := t.TempDir()
	in := store.NewDir(disk.OS(), filepath.ToSlash(filepath.Join(run, dirName)))
	must(t, in.Prepare())
	addSaved(t, in, 10, slotstate.Pack(stateOf(8, false), 9))
	summary := `{"recovery": "checkpoint:10", "clocks": 20, "model_sha256": null}`
	must(t, os.WriteFile(filepath.Join(run, "summary.json"), []byte(summary), 0o666))
	must(t, os.WriteFile(filepath.Join(run, "lock"), nil, 0o666)) // makes it the directory of a run
	to := filepath.Join(t.TempDir(), "m")
	err := ExportRun(io.Discard, run, to, false, false, false)
	if !errors.Is(err, perdure.ErrUsage) || !oneLine(err, "clock 20") {
		t.Errorf("without the last checkpoint: %v", err)
	}
	addSaved(t, in, 20, slotstate.Pack(stateOf(18, true), 19))
	must(t, ExportRun(io.Discard, run, to, false, false, false))
	if w, _ := weightsIn(t, to); w[0] != 18 {
		t.Errorf("weights %v", w)
	}
}
