package recovery

import "github.com/perdure/perdure"

// stateless keeps nothing in servers: workers append their updates to a durable update log, and a shard's rows are a
// function of its stream.
//
// Promise: any server may take over any shard by loading a snapshot and replaying the later updates. Nothing that the
// log has acknowledged is lost, whichever process dies. (With sync=interval a power failure may lose the last seconds;
// with always it loses nothing.)
//
// Safe point: the log's acknowledgement. (Logged updates that are not applied yet are still kept, so that the program
// that wrote them can read them.)
//
// Cost: each update passes through the log and onto its disk; with sync=always it waits for the disk.
type stateless struct{ r perdure.Recovery }

func (s stateless) Traits() Traits { return Traits{Copies: 1, Safe: Logged} }

func (s stateless) OnLostShards(Loss) Action { return Action{Kind: Replay} }

func (s stateless) OnTornClock() Action {
	return fail("the update log has lost some updates, or is a different log, or the job record is an older copy; " +
		"restore the right log and record from a backup, or start the job again")
}

// its next process continues from the log
func (s stateless) OnWorkerDeath(Death) Action { return Action{Kind: Continue} }

func (s stateless) CheckContinue() error { return nil }

func (s stateless) CheckResume() error { return nil } // from the log, and the snapshots before its records
