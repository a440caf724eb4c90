// Package role runs the process of each role: the coordinator with the control API, a server, a worker, or the update
// log. A role reads the run's settings, limits its use of CPUs and memory, and runs the package that does the work
// (coordinator, server, worker, updatelog). It writes output for the user to Out and everything else to Log.
//
// A worker trains its workload clock by clock, through rollbacks, until the job ends, and evaluates the model
// regularly. Processes without a slot open a workload's tables with OpenTables and evaluate the model with
// EvaluateAtRest.
//
// A process runs one role once. The role sets GOMAXPROCS and the garbage collector's target for the whole process.
package role
