package updatelog

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// What other parameter servers were seen to do to what they had taken, and where it is
// tested that this log does not:
//
//   - An update is acknowledged before the disk has it, and never synced: [TestSyncs]; that
//     what is acknowledged outlives the process, TestLogKilled of cmd/perdure.
//   - At its bound the oldest is dropped in silence, acknowledged as it was: "full" and "fits
//     in parts" of [TestConformance], [TestDiskFull].
//   - What is sent again after a lost connection overtakes what was sent before, or leaves a
//     hole: "order", "middle", "restart" and "given up" of [TestConformance], [TestAssemble].
//   - It comes twice, and is counted twice: [TestLostAck] has it come twice; that it counts
//     once is seen by the simulation's histories, in which acknowledgements are lost.
//   - Several who write at once lose some of each other's: "order", "interleaved".
//   - What a snapshot holds is deleted before the snapshot is safe, or is cut where some of
//     it is still needed: TestDamagedSnapshot and TestUnusableLog of sim, "trim" here.
//   - After a server came back nothing is saved, or cut, any more: TestSavesOn of sim.
//   - A server that comes back passes its snapshot over: the same, since what the snapshot
//     holds is in the log no more.
//   - A checksum that covers nothing, which whoever writes and whoever reads agree on: the
//     golden bytes, and [TestSumCovers].
//   - A file that ends too early is read as an empty one: [TestSumCovers], TestSnapshotDamage
//     of checkpoint.

// TestSumCovers changes any one bit of a record, or cuts it off anywhere: it is refused.
func TestSumCovers(t *testing.T) {
	record := encode(Header{Job: job, Shard: 3, Producer: 7, Group: 9},
		[][][]byte{{[]byte("some")}, {[]byte("entries")}})[0]
	if _, _, err := decode(record); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		b := bytes.Clone(record)
		b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		if _, _, err := decode(b); err == nil {
			rt.Error("a bit is changed")
		}
		if _, _, err := decode(record[:rapid.IntRange(0, len(record)-1).Draw(rt, "length")]); err == nil {
			rt.Error("the end is missing")
		}
	})
}
