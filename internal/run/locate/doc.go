// Package locate finds a running job and connects to it: to its control API by the run's directory or an address
// (Control), to the job itself as a worker or server (Job), or as an observer (Observe). It reads the run's directory
// and queries addresses. If it finds no job, the error says in one line what to write. It also keeps a run's Secrets.
// It makes no decisions about the job.
//
// A Job must be used by one goroutine until Find returns; everything else is safe for concurrent use.
package locate
