package main

// flagText is the help of a flag of train and up. line is for the command's help; the help of
// its group adds more. Lines of more that begin with two spaces are printed unchanged.
type flagText struct{ line, more string }

// flagGroups lists the groups of these flags in the order of the help.
var flagGroups = []struct{ name, title string }{
	{"job", "Size of the job, and when it ends"},
	{"consistency", "How stale reads may be"},
	{"recovery", "What happens when processes die"},
	{"outages", "What happens while a shard is unavailable"},
	{"faults", "Injected faults, and limits on network and compute speed"},
	{"training", "How the model is trained"},
	{"cnn", "The workload cnn"},
	{"mf", "The workload mf"},
	{"softmax", "The workload softmax"},
	{"lda", "The workload lda"},
	{"quadratic", "The workload quadratic"},
	{"run", "The run's directory, earlier runs, and output"},
}

// flagTexts holds the help of each flag under GROUP.FLAG.
var flagTexts = map[string]flagText{
	"job.workers": {"Number of workers.", "Each has a slot, a process and a share of the data. Workers may join " +
		"and leave later."},
	"job.servers": {"Number of servers, which hold the model.", ""},
	"job.shards":  {"Shards of every table; use fewer for small data.", "The servers share the shards."},
	"job.clocks":  {"Iterations of every worker.", "cnn has 2000 by default, and perdure launch no limit."},
	"job.seed":    {"Seed of all random choices.", "Under bsp, the same seed gives the same model."},
	"job.until": {"End at accuracy:A, loss:L, rmse:R or time:T.", "The job ends as soon as the model reaches " +
		"accuracy:A (0 to 1), loss:L or rmse:R on the test set, or after a training time of T. It ends after " +
		"--clocks at the latest (default never)."},
	"job.scale": {"Number of workers from a given clock on.", "WORKERS@clock:CLOCK, for example 4@clock:100; may " +
		"be repeated with later clocks (default none)."},
	"job.listen": {"Address at which workers reach this machine.", "This is the coordinator's address; servers " +
		"listen on the same host. Port 0 picks a free one."},
	"job.keys": {"Keys for private connections.", "DIR is the directory that perdure keys new created, with a " +
		"subdirectory for each role. Connections are encrypted, and both sides present certificates. Required if " +
		"other machines can reach the job (default none)."},
	"job.insecure": {"Let other machines connect without keys.", "Nothing is encrypted, and anyone who can listen on " +
		"the network can also read the run's secret. Use it only on networks where you trust everyone. It also " +
		"allows unencrypted connections to a store or a log on another machine."},
	"job.exec": {"Start your program in each slot.", "COMMAND is a shell command line. It runs with " +
		"PERDURE_COORDINATOR, PERDURE_SECRET_FILE and PERDURE_SLOT set, and is restarted when it dies. Its output is " +
		"written to logs/ (default: you start your programs yourself)."},

	"consistency.consistency": {"How stale reads may be.", `
  bsp      not at all
  ssp:S    by at most S clocks
  essp:S   as ssp:S, but servers push changed rows
  asp      without limit
  vap:V    without limit, but a worker's updates that are not yet visible
           to all workers change no value by more than V/√(clock+1) in
           total; a single update may exceed that
TABLE=MODEL applies to one table, and MODEL alone to all others. For example, with mf: ssp:2,items=bsp.`},
	"consistency.stale-scale": {"How updates from stale rows are scaled down.", `
  none     not at all
  inverse  by 1/(1+age), where age is the number of clocks that all slots
           have finished since the row was read
  paper    to a tenth if more than 50 updates were applied in between
  average  updates made while the shard was unavailable are multiplied by
           1/workers, so that their mean is applied; sums, such as tables
           with the rule add, are not scaled
Under bsp no row is stale (default average with --on-outage continue, else none).`},
	"consistency.atomic-clocks": {"A worker's clock takes effect on all servers or on none.", "If the worker dies, " +
		"its saved state then belongs to the clock at which its replacement continues, under asp, ssp:S and essp:S " +
		"as well. Updates take effect a round trip later (default off; bsp always works like this)."},
	"consistency.cache-mb": {"Rows that each worker caches, in MiB.", "Rows that do not fit are read again when " +
		"needed."},

	"recovery.recovery": {"What a server's death does.", `
  none                    its rows start from scratch
  resend:C                its shards return to the last checkpoint (one is made
                          every C clocks); workers resend later updates
  resend:C,partial        as resend:C; if a worker dies as well, updates
                          without a copy are lost and counted; no rollback
  checkpoint:C            all shards roll back to the last checkpoint
  checkpoint:C,async      as checkpoint:C; training continues while a
                          checkpoint is written, as under resend
  chain:N                 each shard is kept on N servers; an update counts
                          once all have it
  chain:N,checkpoint:C    as chain:N; if all N die, all shards roll back
  chain:N,async           an update counts once the first server has it;
                          updates that only that server has die with it
  chain:N,every:K         as chain:N,async; the others follow every K clocks
  stateless               updates go to a log, from which any server can
                          rebuild the rows; see --log
  scar:C,R,SELECTOR       a dead server's rows return as last saved, without
                          a rollback; a fraction R of all rows (say 1/8) is
                          saved every R·C clocks, chosen by priority, round,
                          random or used
With auto for C the job chooses the interval. resend means resend:auto, and scar means scar:auto,1/8,priority.`},
	"recovery.mtbf": {"Mean time between failures, for auto.", "For checkpoint:auto and resend:auto, for example 6h. " +
		"The checkpoint interval is computed from it and from the time that a checkpoint takes (default: estimated " +
		"from the failures so far, starting from one per hour)."},
	"recovery.store": {"Where checkpoints are kept.", "Location of checkpoints or shard snapshots: file:///DIR, or " +
		"s3://BUCKET/PREFIX?endpoint=URL&region=NAME with credentials from the environment or ~/.aws (default the " +
		"directory checkpoint in the run's directory)."},
	"recovery.keep-checkpoints": {"How many checkpoints to keep; 0: all.", "The newest are kept; under scar at " +
		"least two."},
	"recovery.grace": {"How long the last checkpoint may take.", "When Ctrl-C, SIGTERM or perdure stop ends the " +
		"job early, it writes a last checkpoint if its recovery strategy uses checkpoints. Before that, programs of " +
		"--exec that train with DiLoCo get SIGTERM and as long to end. 0s writes none. A second Ctrl-C ends the job " +
		"immediately."},
	"recovery.no-replace": {"Do not replace servers that die.", "The other servers take over their shards."},
	"recovery.max-failures": {"Fail the job after N failures of a program at one clock.", "The program fails if it " +
		"ends by itself before its work is done; being killed by a signal from outside does not count. A usage error " +
		"(code 2) fails the job immediately. The count restarts when the slot's clock advances."},
	"recovery.take-over-after": {"Reassign the shards of a server gone this long.", "A later " +
		"replacement is assigned shards again. 0s: wait for the replacement indefinitely (default 30s)."},
	"recovery.zones": {"The zones of all servers, assigned in turn.", "With a,b server 0 is in a, 1 in b, 2 in " +
		"a, and so on. A zone is a failure domain, such as a rack. Copies of a shard are kept in different zones if " +
		"possible (default none)."},
	"recovery.retain-mb": {"Updates that each worker retains, in MiB.", "Under resend, workers retain updates " +
		"until a checkpoint contains them. When half of the limit is used, a checkpoint is made early."},
	"recovery.log": {"The update log of stateless.", `
  file:?OPTIONS              a process of this job serves it, from the run's
                             directory (the default)
  perdure://HOST:PORT?OPTIONS
                             perdure log --keys serves it, with the job's keys
  nats://HOST:PORT?OPTIONS   a NATS cluster with JetStream stores it, or
                             perdure log without keys serves it; or tls://
OPTIONS are NAME=VALUE, separated by &:
  sync=interval              (file) updates are written to the operating
                             system and synced every few seconds: they survive
                             the death of any process, but not of the machine
                             (the default)
  sync=always                (file) an update counts once it is on disk
  mb=N                       disk space limit in MiB, over all shards; when it
                             is reached, appends wait (default 4096, or 32 for
                             each shard, or less on small disks)
  snapshot-mb=N              MiB of updates between two snapshots of the
                             shards, which truncate the log (default 256)
  creds=FILE                 (nats) credentials file, as created by nsc
  ca=FILE                    (nats) the certificate authority of the cluster
  cert=FILE                  (nats) this job's own certificate, with key=FILE
  replicas=N                 (nats) number of copies of each update, 1 to 5
For example 'file:?sync=always&mb=8192'; quote it in a shell.`},

	"outages.on-outage": {"What workers do while a shard is unavailable.", `
  wait             wait until a live server answers for it
  continue         read its rows from the cache, up to 1000 clocks older than
                   the consistency model allows, and queue its updates;
                   nothing is lost
  continue:CLOCKS  as continue, up to CLOCKS clocks older
continue cannot be combined with bsp, or with recovery none or checkpoint:C.`},
	"outages.outage-rows": {"What reads of an unavailable shard return.", "With --on-outage continue: frozen " +
		"(rows stay as they were) or apply (the worker's own updates are added)."},
	"outages.outage-mb": {"Limit on a worker's queued updates, in MiB.", "With --on-outage continue: updates for " +
		"unavailable shards. When the queue is full, the worker waits."},
	"outages.suspend-after": {"Continue without a worker gone this long.", "It takes part again when a new process " +
		"takes its slot. Under bsp, the job always waits. 0s: never (default 30s, under bsp never)."},

	"faults.fault": {"Inject a failure, such as kill:server:0@clock:100.", `
KIND:TARGET@WHEN[+FOR]; may be repeated (default none).
  KIND    kill, term, freeze, cut, slow*X, jitter*X
  TARGET  server:I, worker:I (* for all), coordinator, log, shards:PART
  WHEN    clock:N, clock:N,TIME (that long after it), or a time since the start
  FOR     how long it lasts
For example 'kill:server:0@clock:100+2s'.`},
	"faults.delay": {"Delay every message by this time.", "Applies to every message between the job's processes, for " +
		"example 5ms, or 5ms±2ms for a random delay that is drawn for each message (default no delay). Messages sent " +
		"by your own programs are not delayed."},
	"faults.bandwidth": {"Limit on bytes per second.", "For each process and each connection, for example 100MB; " +
		"also KB, GB, KiB, MiB, GiB (default no limit)."},
	"faults.compute-ms": {"Minimum milliseconds of compute per clock.", "A worker that finishes a clock sooner " +
		"sleeps for the rest and uses no core."},

	"training.data": {"Data set's directory or file; see perdure data.", "Or synthetic:F (default the workload's " +
		"own)."},
	"training.init": {"Start with the model of another run.", "A model.safetensors, or the directory of a run " +
		"that has one, for the same workload with the same tables. Clocks, the schedule and the rule's state " +
		"start from scratch."},
	"training.lr":    {"Learning rate at clock 0.", "(default: the workload's value for the rule)"},
	"training.batch": {"Examples per worker and clock.", "(default the workload's)"},
	"training.rule": {"How servers apply updates (default the workload's).", "sgd, momentum, nesterov, adagrad, " +
		"rowwise-adagrad, adam or ftrl, followed by settings, for example " +
		"adam,beta2=0.99,decay=0.01,clip-norm=5."},
	"training.combine": {"How the workers' updates of a clock are combined.", "each: the rule runs for each update; " +
		"sum, mean: it runs once, for the sum or the mean; weighted: once, for the mean weighted by examples " +
		"(default each). All modes except each need bsp, and are only for softmax and cnn."},
	"training.sparse":      {"Keep the model in sparse tables.", "A row is stored from its first update on."},
	"training.schedule":    {"Learning rate over time.", "const, sqrt (rate/√(clock+1)) or step."},
	"training.step-every":  {"Schedule step: clocks between two steps.", ""},
	"training.step-factor": {"Schedule step: factor applied to the rate.", ""},
	"training.eval-every": {"Clocks or time between two evaluations.", "Evaluates on the test set, either every N " +
		"clocks, by worker 0, or at intervals such as 2s, by this command, which costs the workers no time. 0: only " +
		"at the end."},

	"cnn.final-relu": {"Apply a final ReLU to the scores.", "The network's authors use it."},
	"cnn.partition": {"Split tables by row, or keep each layer whole.", "row splits each table over all shards. " +
		"layer keeps each table on one shard, so that scar saves and restores it as a whole."},
	"mf.rank": {"Values in each user's and each item's row.", "(default the workload's)"},
	"mf.l2": {
		"Weight of the rows' squared values in the loss.",
		"For each rating (default the workload's).",
	},
	"mf.clock-fraction": {"Fraction of a worker's ratings per clock.", "(default the workload's)"},
	"mf.whole-users": {"Process all ratings of some users per clock.", "Users take turns. Without it, a clock " +
		"processes ratings drawn at random."},

	"mf.solver": {"How rows are computed (default sgd).", "sgd takes a step for each rating. als, alternating " +
		"least squares, solves for each row exactly, without a learning rate, first for users and then for " +
		"items."},
	"mf.implicit": {"als: values count how often an item was seen.", "The weight of an item that a user has seen is " +
		"1 + X times its count; unseen items count as unwanted, with weight 1. 0: values are ratings. 10 to 40 is " +
		"usual."},

	"lda.topics": {"Number of topics.", "(default the workload's)"},
	"lda.alpha": {"Prior of the topics in each document.", "The Dirichlet prior of a document's topic mixture: " +
		"values below 1 give few topics, values above 1 many (default the workload's)."},
	"lda.beta": {"Prior of the words in each topic.", "The Dirichlet prior of a topic's words: lower " +
		"values give fewer words (default the workload's)."},
	"lda.rebuild": {"Restore lost counts.", "If counts are lost when a server dies, workers restore them from the " +
		"assignments. Under models other than bsp, each worker adds the counts of its own documents. For recovery " +
		"strategies that lose rows: none, scar, resend:C,partial and chain:N,async."},
	"lda.doc-topics": {"Where documents' topics are kept.", "slot: in each worker's memory. table: only on servers, " +
		"and read in each clock, so rows lost with a server lose topics; use it to compare with the SCAR paper."},
	"lda.clock-fraction": {"Fraction of a worker's documents per clock.", "(default the workload's)"},

	"softmax.l2": {"Weight of the squared weights in the loss.", "X/2 times their sum; the bias is left out."},
	"softmax.full-batch": {
		"Use all of a worker's examples in each clock.",
		"Gradients are then exact, and training is " +
			"plain gradient descent on a convex function.",
	},
	"quadratic.rows": {"Rows of x.", "(default the workload's)"},
	"quadratic.dim":  {"Values in each row.", "(default the workload's)"},
	"quadratic.condition": {"Ratio of the largest to the smallest curvature.", "Larger values converge more " +
		"slowly (default the workload's)."},
	"quadratic.noise": {"Standard deviation of the gradients' error.", "For each value; 0: gradients are " +
		"exact."},

	"run.file": {"Read the job from a file; see perdure init.", "YAML or JSON. Its keys are the flags' names " +
		"without dashes, and workload. Flags on the command line override the file."},
	"run.out": {"The run's directory, empty or new.", "(default runs/NAME-TIME)"},
	"run.dashboard": {"Show the running job to a browser.", "Prints a link that opens once. The page can also kill, " +
		"freeze and resume processes. Listens on a free port of this machine unless you name an address; other " +
		"machines can reach it only with --keys (default none)."},
	"run.resume": {"Continue an earlier run from where it ended.", "From the last checkpoint in that run's " +
		"directory, or from its update log, with its settings. --clocks, --servers, --recovery, --mtbf, --until, " +
		"--eval-every, --fault, --delay, --bandwidth, --listen, --grace, --max-failures, --keep-checkpoints, " +
		"--store, --exec and --out may differ. Your own programs start at that clock. With train, --workers may " +
		"also differ."},
	"run.fork": {"Continue from a checkpoint as another run.", "From the checkpoint of CLOCK, or the newest, " +
		"with that run's settings. The same flags may differ as with --resume; scar can follow any strategy. The " +
		"original run is not changed and may still be running."},
	"run.from": {"Repeat the run that run.json describes.", "With its settings; --fault, --delay, --bandwidth, " +
		"--listen, --grace, --max-failures, --store, --exec and --out may differ."},
	"run.quiet": {"Print only the result, on one line.", ""},
	"run.metrics": {"Serve metrics for Prometheus.", "The coordinator listens at HOST:PORT, servers and then " +
		"workers at the following ports; with port 0, as in 127.0.0.1:0, each picks a free one. metrics.json in " +
		"the run's directory lists the addresses. Without a host, only this machine can reach them (default " +
		"nowhere)."},
	"run.log-format": {"How logs are written: text or json.", "One line per entry, with job, role and id."},
	"run.json":       {"Print the result as JSON, and nothing else.", "The document is the same as summary.json."},
}
