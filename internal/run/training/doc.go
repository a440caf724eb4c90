// Package training is what a worker process does with a workload: clock after clock through
// roll-backs to the job's end, with an evaluation now and then. It also gives a workload its
// tables through a client (Tables), and says how good the model is (AtRest), for processes
// that have no slot.
//
// A training belongs to one goroutine, as its client and its workload do. A Pacer, by which
// others slow it down or end it, is safe for concurrent use.
package training
