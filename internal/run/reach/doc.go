// Package reach finds a running job and connects to it: to its control API, by the run's folder or by an address
// (Control); to the job itself, to work or to serve in it (Job); or only to observe it (Observe). It reads what
// the run's folder has, asks who answers, and says in one line what to write where it finds nothing. It also keeps
// a run's Secrets. It decides nothing about the job.
//
// A Job belongs to one goroutine until it is found; all else is safe for concurrent use.
package reach
