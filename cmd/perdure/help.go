package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// fillHelp replaces each tag of the form "@name" by the text of that name in helps. The texts are not kong variables:
// kong copies all variables for every flag, which costs each process of a job a tenth of a second.
func fillHelp(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) (err error) {
		switch n := node.(type) {
		case *kong.Node:
			if n.Help, err = helpOf(n.Help); err == nil {
				err = fillFlags(n)
			}
		case *kong.Value:
			n.Help, err = helpOf(n.Help)
		}
		if err != nil {
			return err
		}
		return next(nil)
	})
}

// helpOf expands a tag "@name rest" to the text of that name and the rest. Other tags are returned unchanged.
func helpOf(tag string) (string, error) {
	name, names := strings.CutPrefix(tag, "@")
	if !names {
		return tag, nil
	}
	rest := strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz_")
	name = name[:len(name)-len(rest)]
	text, known := helps[name]
	if !known {
		return "", fmt.Errorf("unknown help text %q", name)
	}
	return text + rest, nil
}

// helps holds the help texts of flags and commands that are too long for a struct tag.
var helps = map[string]string{
	"perdure_study": "Run a study. Its file defines what varies, how machines fail and how often each case is " +
		"repeated. perdure study FILE is short for perdure study run FILE; see that command's help for the " +
		"flags.",
	"study_run": "Run or continue the study in FILE. Finished runs are not repeated unless their directory was " +
		"deleted.",
	"runs_prices": "Show what runs cost, using this price file: on demand, on spot machines, and as a share of a " +
		"monthly price, which includes idle time.",
	"study_losses": "Measure how many extra iterations training needs after servers die, for each recovery strategy. " +
		"It trains in memory, kills servers at random clocks, and counts the clocks until the loss is reached again. " +
		"Example: perdure study losses --lost 1/2 -- mf --solver als",
	"losses_recovery": "A strategy to test: checkpoint:C, scar:C,R,SELECTOR or none; may be repeated. All are " +
		"compared with the first (default: checkpoint:16, and scar:16 with R 1, and with 1/8 by each selector).",
	"losses_mean": "Mean clock of a failure, which is drawn from a geometric distribution (default: a third of " +
		"--clocks).",
	"losses_measure": "How a model is evaluated at each clock: train (loss on the training data), test (loss on " +
		"other examples), or distance (to the optimum, with bounds) (default: test if clocks process batches, else " +
		"train).",
	"losses_perturb": "A perturbation other than a server's death: random:X, adversarial:X (X of the way from " +
		"the initial rows to the optimum), reset:PART of the rows, or stale:CLOCKS, the age of every read; may be " +
		"repeated.",
	"losses_smooth":   "Clocks over which the loss is averaged, to even out the noise of batches",
	"losses_lose":     "What PART counts: servers, which hold neighbouring shards, or individual shards",
	"losses_trials":   "Trials of each case",
	"losses_failures": "Failures in each trial, at random clocks",
	"losses_saved_as": "Precision in which scar saves rows: float32 (exact) or bfloat16 (rounded)",
	"losses_lost":     "Fraction of the servers that die; may be repeated",
	"losses_twins":    "Undisturbed runs, each with the next seed",
	"losses_out":      "Directory for costs.json, trials.csv, a table of the costs, and plots.",
	"losses_strike": "When a failure strikes: between two clocks, or in the middle of one (amid), after all " +
		"workers have read",
	"losses_sample": "Number of test examples to evaluate on, if the workload can sample them",
	"losses_train":  "After --: what to train, with the arguments of perdure train.",
	"losses_repeat": "Trials to repeat with real processes whose servers are killed; the resulting models must " +
		"be identical.",
	"study_init":  "Write an example study to start from.",
	"study_out":   "Directory of all its runs (default runs/NAME, with --quick runs/NAME-quick).",
	"study_quick": "Try the study with the smaller settings of its section quick.",
	"study_mixed": "Accept results of runs made by another build of perdure; without this flag, the study rejects " +
		"them.",
	"study_parallel": "Number of runs at a time; they compete for cores",
	"perdure_stop": "Stop a running job gracefully. Its train command then exits with code 130, its up command " +
		"with 0.",
	"perdure_server": "Add a server to a running job. It waits until a server index is free. On SIGTERM it hands " +
		"over its shards and ends.",
	"perdure_coordinator": "Run the coordinator of a job on many hosts. The first start creates the job in " +
		"--dir; later starts continue it. A signal ends the coordinator but not the job; perdure stop ends the " +
		"job.",
	"coordinator_job": "The job file, as for train -f. With workload: own, the workers run your own programs, " +
		"and the file's keys are the flags of up.",
	"coordinator_dir": "Directory of this job only: its settings, secrets, registry and checkpoints.",
	"coordinator_listen": "Address at which servers, workers and hosts reach the coordinator (default " +
		"127.0.0.1:7000).",
	"coordinator_advertise": "Address to announce if it differs from --listen: a host name, or the public address of " +
		"a NAT. Without a port, that of --listen.",
	"coordinator_control": "Address of the control API for perdure status and perdure stop (default a free port " +
		"of this machine, which is written to the file control in --dir).",
	"coordinator_dashboard": "Show the job to a browser, at a free port of this machine or at this address; perdure " +
		"dashboard prints a link (default none).",
	"perdure_host": "Keep the servers and workers of this machine running, in a job on many hosts. On SIGTERM " +
		"workers leave at the end of a clock, then servers hand over their shards; a second SIGTERM ends all " +
		"processes immediately.",
	"host_join": "Addresses of the job's coordinators, separated by commas; they are tried in turn. @FILE reads " +
		"them from a file, again for each attempt.",
	"host_servers": "Number of servers",
	"host_workers": "Number of workers",
	"host_dir": "The host's own directory, for its processes' logs; also for the secret, unless --secret-file " +
		"names it",
	"host_listen": "Address of the first server; each further server uses the next port. Without a port, each " +
		"uses a free one (default the address of this machine that reaches the coordinator).",
	"host_advertise": "Address to announce for servers if it differs from --listen.",
	"host_zone":      "Failure domain of this host's servers, such as a rack (default none).",
	"host_name":      "Name of this host, for perdure drain (default the machine's name).",
	"host_notice": "Time the host has to shut down. After that, remaining processes end even if others have not " +
		"taken over their work. Set it a little below the provider's notice, such as 25s of 30 s (default: as long " +
		"as it takes).",
	"host_notice_command": "A shell command that the host runs repeatedly, 2 s after the previous run ended. Exit " +
		"code 0 means that the machine is about to be reclaimed; the host then shuts down gracefully. Example: a " +
		"query of the cloud's metadata service.",
	"server_notice": "Time the server has to hand over its shards after SIGTERM; then it ends anyway (default: " +
		"as long as it takes).",
	"perdure_drain": "Move all work of a server or a host to others, then end it. Prints the remaining work until " +
		"that is done. If the notice expires first, the exit code is 1 and a line lists what was not handed over.",
	"drain_who": "A server, such as server:3, or a host's name. A host's servers are drained, and its workers leave " +
		"the job.",
	"drain_notice": "End it after this time, even with work left (default: as long as it takes, or the host's " +
		"own notice).",
	"host_logs": "Where the output of its processes goes: files (in logs/ in its directory) or output (with the " +
		"host's own log)",
	"signal_code": "Exit code if a signal ends it before the job is over. Supervisors that restart only failed " +
		"processes, such as Kubernetes, need a code other than 0",
	"host_command": "The program that each worker runs, after --, with its arguments (default perdure worker, " +
		"for jobs of perdure train).",
	"server_advertise": "Address to announce if it differs from --listen.",
	"perdure_agent": "Act as the worker of the parent process, a program that is not written in Go. Perdure's " +
		"packages start it; users do not.",
	"metrics": "Serve the process's state at this address: /metrics for Prometheus, /healthz, /readyz. Without a " +
		"host, only this machine can reach it (default nowhere).",
	"log_format":  "Log format, one line per entry: text or json",
	"agent_fd":    "File descriptor of the socket to the program",
	"up_announce": "Write the job's address to this file descriptor, as JSON.",
	"perdure_worker": "Add a worker to a running job, in a slot without a worker. On SIGTERM it finishes its " +
		"clock and leaves.",
	"perdure_report": "Write a report of runs to read and share: results in plain sentences, plots, tables, " +
		"settings, and the commands to repeat the runs.",
	"report_folders": "Directories of runs, or directories with runs below them. Runs that differ only in their " +
		"seed are trials of one group.",
	"report_out":   "File to write: .html, which contains everything, or .md, with its plots next to it",
	"study_report": "Do not run anything: collect the results of finished runs, even while the study runs.",
	"perdure_export": "Write the model of a run as safetensors. For a run that is still running or has failed, " +
		"that is the model of its newest complete checkpoint. With DataParallel in PyTorch, a checkpoint has the " +
		"weights from before its last step.",
	"perdure_predict": "Predict with a trained model: ratings of items by users (mf), or classes of examples " +
		"(softmax, cnn, logreg). Prints CSV.",
	"predict_model": "The model's file, or the directory of the run that trained it.",
	"predict_user":  "mf: print the top items of this user; may be repeated.",
	"predict_known": "mf: a file of known ratings, such as the training data; a user's top items exclude items " +
		"rated there.",
	"predict_data": "softmax, cnn, logreg: the examples (default the workload's own data). In a directory, the " +
		"test part is classified; in a single file (logreg, or CoverType's CSV for softmax and logreg), every " +
		"line.",
	"export_run": "The run's directory.",
	"export_partial": "For PyTorch: omit tensors that are not in the job, such as frozen parameters above 64 MiB, " +
		"and name them.",
	"perdure_checkpoint": "Inspect the checkpoints of a run, export one as a model, or delete old ones.",
	"perdure_bench": "Measure the cost of Perdure on this machine: pushes and pulls compared with a raw exchange " +
		"of the same bytes, or whole workloads compared with a plain loop.",
	"target_run":     "The run's directory (default the newest in runs/).",
	"target_address": "Address of the control API, instead of --run.",
	"fault_spec": "KIND:TARGET@WHEN[+FOR], as for train --fault, for example kill:server:0@0s. A time or clock " +
		"in the past means now.",
	"scale_workers": "New number of workers. If it is lower, those that joined last leave; if it is higher, the " +
		"job's parent process starts more.",
	"scale_at": "The clock at which the change takes effect; rejected if a worker has already started it " +
		"(default the first clock that no worker has started).",
	"join_join": "Address of the running job, as perdure status shows it. Separate several coordinators with commas; " +
		"@FILE reads them from a file, again for each attempt.",
	"join_run": "The run's directory, or another directory with a copy of its run.json (default the directory " +
		"that the job names).",
	"join_coordinator": "The coordinator's address, for a process that the run's parent starts.",
	"keys": "Directory with the keys of this process, for a job with private connections: the directory of its role, " +
		"as created by perdure keys new, or the one with all roles (default none).",
	"coordinator_registry": "Where to keep the job record: the path of a file, or " +
		"etcd://HOST:PORT,HOST:PORT/PREFIX. Several coordinators on different machines can share an etcd " +
		"registry: one leads, the others are on standby (default in --dir).",
	"insecure": "Let other machines connect without keys. Nothing is encrypted.",
	"coordinator_insecure": "Let other machines connect without keys, and allow unencrypted connections to a " +
		"registry, a store or a log on another machine.",
	"perdure_keys": "Make, list, renew and revoke the keys of a job that other machines can reach, and make " +
		"tokens.",
	"keys_new": "Make a directory of keys: a certificate for each role, and the authority that signs them. " +
		"Holders of a role's keys may do whatever that role may do.",
	"keys_issue": "Make keys for one more machine or person, so that they can be revoked separately.",
	"keys_renew": "Make new keys for all holders, or for the named ones. A running job reads them as soon as the " +
		"files are in place.",
	"keys_revoke": "Revoke certificates and tokens. Processes of a job reject them as soon as they have the new " +
		"list. A name revokes all unexpired certificates and tokens of that holder.",
	"keys_dir":   "The directory that perdure keys new created.",
	"keys_days":  "Validity in days",
	"keys_job":   "Name of the job, which appears in all certificates",
	"keys_role":  "The role of the keys: coordinator, server, worker, operator or viewer.",
	"keys_names": "Directories within it, such as server or worker-alice (default all).",
	"keys_revoke_names": "Names of holders, which are also the names of their directories, such as worker-alice; or " +
		"serial numbers of certificates and tokens.",
	"keys_token": "Print a token for tools that cannot present a certificate to a job's control API, such as " +
		"curl or a dashboard. Anyone who has the token may do what its role allows.",
	"keys_token_role": "Role of the token: viewer (read only) or operator (control and stop the job).",
	"keys_token_for":  "Validity, such as 24h.",
	"keys_token_name": "Name of the holder, for the log",
	"token": "Authenticate with the token in this file instead of a certificate. ca.pem of the job's keys must " +
		"be in the same directory, or in the one that --keys names.",
	"secret": "File with the run's secret (default the file secret in the run's directory). A server also needs " +
		"the file secret.servers, in the same directory.",
	"server_listen": "Address to listen on for workers; it must be reachable from their machines. Port 0 picks a " +
		"free one",
	"server_zone":       "Failure domain of this server, such as a rack (default none).",
	"worker_lost_after": "End if no process of the job has been reachable for this long; 0s: never",
	"outage_mb": "Limit on updates that this worker queues for unavailable shards, in MiB, if the job continues " +
		"without them; 0: the job's limit",
	"logs_serve": "Serve update logs from a directory (the default).",
	"checkpoint_ls": "List the checkpoints of a run, newest first: clock, age, bytes, files, strategy, and " +
		"whether all files exist; for scar also the age of the oldest rows.",
	"checkpoint_show": "Describe a checkpoint: its job, its tables, and the files of each shard. A scar " +
		"checkpoint saves rows at different clocks; its rows are read to show how old they are.",
	"checkpoint_verify": "Read every byte of a run's checkpoints, or of its shard snapshots. Prints a line for " +
		"each defect; the exit code is 1 if there are any.",
	"checkpoint_export": "Write the model of a checkpoint as safetensors, in the same format as a finished run. " +
		"For scar, with each row as it would be restored.",
	"checkpoint_prune": "Delete all but the newest complete checkpoints, and files that belong to no checkpoint. " +
		"The remaining checkpoints are verified first. The run must have ended.",
	"checkpoint_dir": "A run's directory, its directory of checkpoints, or the URL of its store.",
	"checkpoint_one": "A run's directory, its directory of checkpoints, or the URL of its store; append @CLOCK " +
		"to choose the checkpoint of a clock",
	"runs_export": "Write runs as CSV, or for TensorBoard.",
	"runs_rm": "Delete runs that have ended: all files that they wrote into their directories. Other files " +
		"stay.",
	"runs_folders": "Directories of runs, or directories with runs below them (default runs).",
	"runs_sort": "Sort by name, began, time, result (best first), faults or lost (default the order in which " +
		"they are found).",
	"runs_csv":         "Write one row per run: the columns of runs ls, and each setting.",
	"runs_series":      "Write one row per measurement of each run.",
	"runs_tensorboard": "Write one directory per run, with its measurements in TensorBoard's format.",
	"runs_ended":       "The run's directory.",
	"checkpoint_keep": "Number of complete checkpoints to keep, newest first. 0 keeps all and deletes only files " +
		"that belong to no checkpoint.",
	"serve_dir": "The log's directory, created if it does not exist.",
	"serve_listen": "Address to listen on (default ${default}: a free port, which stays the same after a " +
		"restart).",
	"serve_sync": "When an update counts as logged: interval (written to the operating system; survives the " +
		"death of any process, but not of the machine) or always (on disk) (default ${default}).",
	"serve_mb": "Disk space limit for all streams, in MiB (default three quarters of the free space).",
	"serve_keys": "Directory of the job's keys, or of its servers' keys: the log presents a server certificate " +
		"and requires one from its clients (default none).",
	"place_place": "Directory of a run or a log, running or not; or the address of a log: perdure://HOST:PORT or " +
		"nats://HOST:PORT?creds=FILE&ca=FILE&cert=FILE&key=FILE.",
	"place_keys": "Directory of an operator's keys, or of all roles' keys, for a log that requires keys (default " +
		"the run's keys).",
	"place_job": "Only streams of this job (default all).",
	"dump_from": "The first position to show (default the first one stored).",
	"dump_most": "Number of records to show, 1 or more (default all).",
	"bench_moves": "Compare pushes and pulls of blocks and rows with a raw exchange of the same bytes (the " +
		"default).",
	"bench_recovery": "Measure what recovery strategies cost without failures, and how long a failure interrupts " +
		"training.",
	"bench_workloads": "Compare training programs, in real processes, with the same kernel in a plain loop on " +
		"one thread.",
	"moves_op": "What to measure: pull, push (deltas computed in the update's own buffer), inc (deltas copied by " +
		"Inc, first rule only) (default all).",
	"moves_rule": "Update rules for push and inc: add, sgd, adam (default all).",
	"moves_size": "Blocks to move: 4KiB, 64KiB, 4MiB, 40MB of a dense table, 1000rows, 100000rows of a sparse " +
		"one (default all).",
	"moves_rounds": "Rounds of each measurement; a round measures Perdure once and the raw exchange once",
	"moves_time": "Time for a measurement, all rounds together; large blocks take longer, because a round has at " +
		"least one operation",
	"moves_shards": "Shards of every table, all on one server (default 1 for blocks of 4 and 64 KiB, 8 for " +
		"larger ones, the number of CPUs for rows; at least as many as connections).",
	"moves_raw": "Connections of the raw exchange (default one, or as many as Perdure uses if that is faster).",
	"strategies_recovery": "Recovery strategy; may be repeated (default none, checkpoint:20, resend:20, chain:2, " +
		"chain:3, stateless, scar:20,1/8,priority).",
	"strategies_fault": "Fault to inject: kill:head, kill:middle or kill:tail of a chain; kill:server, " +
		"freeze:server (permanently), cut:server (off the network, permanently) or term:server (SIGTERM), a " +
		"random one; kill:coordinator; kill:log, under stateless (default all that the strategy supports).",
	"strategies_measure": "What to measure: train (training speed, compared with none), push (speed of pushes of " +
		"4 MiB, compared with none), faults, save (a checkpoint of --mb, or 500, MB during training and without " +
		"it; no --recovery), rows (cost of scar's selectors while they save --mb, or 500, MB within --mb/50 s, " +
		"which is as much as all rows; no --recovery), replay (how fast --mb, or 500, MB of updates are read back " +
		"from the log after a stateless server is killed; one server and one worker unless --servers is set; no " +
		"--recovery) (default train, push and faults).",
	"strategies_rounds": "Rounds of each measurement",
	"strategies_mb":     "faults: train an additional model of N MB next to softmax's small one",
	"strategies_snapshot": "faults: also measure how fast a server that joins a chain copies its shards, how " +
		"fast they are read meanwhile, and how long a server takes to drain; use it with a large --mb.",
	"strategies_shards":      "Shards of every table",
	"strategies_consistency": "Consistency model of all tables; pushes are measured under asp",
	"strategies_workload":    "train: the workload, one that trains in batches",
	"strategies_batch":       "train: examples per worker and clock",
	"strategies_clocks":      "train: clocks of each job",
	"strategies_seed":        "Seed for the choice of servers that fail",
	"programs_workload": "What to train: mf (rank 100, clocks of a tenth of the ratings, whole users), als (mf " +
		"--solver als, rank 32), als-100 (the same, rank 100), softmax (batch 64), cnn (batch 128), logreg (batch " +
		"2048), lda, quadratic (100,000 values; default all).",
	"programs_data":        "mf, als and als-100: file of ratings, or synthetic:F",
	"programs_consistency": "Consistency model of all tables",
	"programs_recovery":    "Recovery strategy",
	"programs_shards":      "Shards of every table",
	"programs_rounds":      "Rounds; each is one job and one plain loop",
	"programs_clocks": "Clocks of each job of mf, cnn, logreg, lda and quadratic. als runs a tenth of them, " +
		"als-100 a hundredth, and softmax, whose clocks are short, 100 times as many",
	"perdure_dashboard": "Show a run in a browser. Serves a run that has ended until you press Ctrl-C; prints a new " +
		"link for one that is running with --dashboard.",
	"dashboard_run":    "Directory of the run.",
	"dashboard_listen": "Address for the browser; other machines can reach it only with --keys",
	"demo_dashboard": "Show one slower run to a browser, as a lecture of a minute in which you can kill processes " +
		"(default none).",
	"demo_out":  "Directory for the two runs, empty or new (default a new temporary directory).",
	"demo_seed": "Seed of all random choices",
	"fetch_dir": "Directory to put it in, under its own name",
}
