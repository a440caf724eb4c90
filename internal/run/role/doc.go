// Package role runs the process of each role: the coordinator with the control API, a server, a worker, or the
// update log. A role reads the run's settings, bounds what it takes of the machine, and hands itself to the shell
// that does the work (coordinator, server, worker, updatelog). It prints what people are told to its Out, and all
// else to its Log.
//
// A worker trains its workload clock after clock, through roll-backs to the job's end, and evaluates the model
// now and then. Processes without a slot get a workload's tables by OpenTables, and evaluate the model by
// EvaluateAtRest.
//
// A process has one role, and runs it once. It sets GOMAXPROCS and the pace of the garbage
// collector of the whole process.
package role
