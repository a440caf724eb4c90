package updatelog

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// Failures that other systems have shown with data that they had accepted, and the tests that this log does not:
//
//   - An update is acknowledged before it is on disk, and never synced: [TestSyncs]. TestLogKilled of cmd/perdure
//     checks that
// acknowledged updates survive the process.
//   - At the limit, the oldest acknowledged records are silently dropped: "full" and "fits in parts" of
//     [TestConformance],
// [TestDiskFull].
//   - Data resent after a lost connection overtakes earlier data, or leaves a gap: "order", "middle", "restart" and
// "given up" of [TestConformance], [TestAssemble].
//   - Resent data is counted twice: [TestLostAck] makes it appear twice. The simulation, which loses acknowledgements,
//     checks
// that it counts once.
//   - Concurrent writers lose some of each other's data: "order", "interleaved".
//   - Records are deleted before the snapshot that includes them is safe, or while they are still needed:
// TestDamagedSnapshot and TestUnusableLog of sim, "trim" here.
//   - After a server restarts, saving or trimming stops: TestSavesOn of sim.
//   - A restarted server ignores its snapshot: also TestSavesOn, because the records in the snapshot are no longer in
//     the log.
//   - A checksum covers nothing, and writer and reader agree on it: the golden bytes, and [TestSumCovers].
//   - A truncated file is read as an empty one: [TestSumCovers], TestSnapshotDamage of checkpoint.

// TestSumCovers checks that a record with any changed bit or any missing end is rejected.
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
			rt.Error("a record with a changed bit was accepted")
		}
		if _, _, err := decode(record[:rapid.IntRange(0, len(record)-1).Draw(rt, "length")]); err == nil {
			rt.Error("a truncated record was accepted")
		}
	})
}
