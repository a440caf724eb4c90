package recovery

import "github.com/perdure/perdure"

// stateless keeps nothing in servers: workers append their updates to a durable update log,
// and a shard's rows are a function of its stream.
//
// Promise: any server may take over any shard: it loads a snapshot and replays what follows.
// Nothing that the log has acknowledged is lost, whichever process dies. (With
// sync=interval a power cut may take the last seconds; with always it takes nothing.)
//
// Safe point: the log's acknowledgement. (What is logged and not applied is still kept, to be
// shown to the program that wrote it.)
//
// Cost: each update goes through the log and onto its disk; with sync=always it waits
// for the disk.
type stateless struct{ r perdure.Recovery }

func (s stateless) Traits() Traits { return Traits{Copies: 1, Safe: Logged} }

func (s stateless) Orphaned(Loss) Fate { return Fate{Kind: Replay} }

func (s stateless) Halved() Fate {
	return fail("the update log has lost some, or is another one; bring a copy of it back, or begin the job again")
}

func (s stateless) Outlived(Death) Fate { return Fate{Kind: GoOn} } // its next process goes on from the log

func (s stateless) MayContinue() error { return nil }

func (s stateless) MayResume() error { return nil } // from what the log has, and the snapshots before that
