package main

// flagText is what a flag of train and up is for: one short line for its command's help, and
// what else there is to know, for its group's. In more, lines that begin with two spaces are
// kept as they are.
type flagText struct{ line, more string }

// flagGroups are the groups of these flags, in the order of the help.
var flagGroups = []struct{ name, title string }{
	{"job", "How large the job is, and when it ends"},
	{"consistency", "How stale reads may be"},
	{"recovery", "What happens when processes die, and what is kept for it"},
	{"outages", "What happens while nobody answers for a shard"},
	{"faults", "What is to fail, and how slow the network and the machines are"},
	{"training", "How the model is trained"},
	{"cnn", "The workload cnn"},
	{"mf", "The workload mf"},
	{"softmax", "The workload softmax"},
	{"lda", "The workload lda"},
	{"quadratic", "The workload quadratic"},
	{"run", "The run's folder, earlier runs, and what is printed"},
}

// flagTexts are by group and flag.
var flagTexts = map[string]flagText{
	"job.workers": {"Workers, which train.", "Each has a slot, a process and a share of the data. Workers may join " +
		"and leave later."},
	"job.servers": {"Servers, which hold the model.", ""},
	"job.shards":  {"Parts of every table; fewer where data are few.", "The servers share the parts."},
	"job.clocks":  {"Iterations of every worker.", "Without it cnn has 2000."},
	"job.seed":    {"Seed of all that is drawn at random.", "A bsp job ends with the same model for the same seed."},
	"job.until": {"End at accuracy:A, loss:L, rmse:R or time:T.", "The job ends as soon as the test set says so: " +
		"accuracy:A (0 to 1), loss:L or rmse:R, or when it has trained for so long: time:T. At the latest it ends " +
		"after --clocks (default never)."},
	"job.scale": {"How many take part from a clock on.", "WORKERS@clock:CLOCK, for example 4@clock:100; may be " +
		"given again, with later clocks (default none)."},
	"job.listen": {"Where workers reach this machine.", "The coordinator's address, whose host the servers use " +
		"too; port 0 picks a free one."},
	"job.keys": {"Keys, so that all connections are private.", "DIR is what perdure keys new has made, with a folder " +
		"for each role: connections are encrypted, and each side shows a certificate. A job that others can reach " +
		"needs it (default none)."},
	"job.insecure": {"Let others reach it without keys.", "Nothing is encrypted then, and whoever can listen has the " +
		"run's secret, too: for networks where you trust everybody. What goes to a store or a log on another machine " +
		"may then go unencrypted, too."},
	"job.exec": {"Start your program in each slot.", "COMMAND is a command line of the shell. It has " +
		"PERDURE_COORDINATOR, PERDURE_SECRET_FILE and PERDURE_SLOT set, and is started again when it dies. What it " +
		"prints is in logs/ (default: you start it)."},

	"consistency.consistency": {"How stale reads may be.", `
  bsp      not at all
  ssp:S    by S clocks
  essp:S   likewise, but servers push what changed
  asp      at will
  vap:V    at will, but a worker's updates that not all can see yet change
           no value by more than V/√(clock+1) in sum, unless it is one alone
TABLE=MODEL is for one table, and a model alone for all others: with mf ssp:2,items=bsp, say.`},
	"consistency.stale-scale": {"How updates from old rows are weakened.", `
  none     not at all
  inverse  by 1/(1+age), age being how many clocks all slots have done since
  paper    a tenth once more than 50 updates came between
  average  only those made while the shard was out: 1/workers, so that their
           mean is taken; sums, as tables of the rule add are, stay whole
Under bsp nothing is old (default average with --on-outage continue, else none).`},
	"consistency.cache-mb": {"Rows that each worker keeps, in MiB.", "What it does not keep it reads again."},

	"recovery.recovery": {"What a server's death does.", `
  none                    its rows begin again
  resend:C                its shards go back to the last checkpoint, one every
                          C clocks, and workers send again what came after
  resend:C,partial        likewise; if a worker dies, too, what nobody has
                          kept is lost and counted, and nobody goes back
  checkpoint:C            all roll back to the last checkpoint
  checkpoint:C,async      likewise; training goes on while one is written, as
                          under resend
  chain:N                 each shard is kept on N servers; an update counts
                          once all have it
  chain:N,checkpoint:C    likewise, and if all N die, all roll back
  chain:N,async           an update counts once the first has it; what it
                          alone had is lost with it
  chain:N,every:K         likewise, and the others follow every K clocks
  stateless               updates go to a log, from which any server makes the
                          rows again; see --log
  scar:C,R,SELECTOR       a dead server's rows come back as last saved, and
                          nobody goes back; R of the rows, as 1/8, is saved
                          every R·C clocks, chosen by priority, round, random
                          or used
auto for C has the job choose how often. resend alone is resend:auto, and scar alone scar:auto,1/8,priority.`},
	"recovery.mtbf": {"Time between two failures, for auto.", "Under checkpoint:auto and resend:auto: for " +
		"example 6h. " +
		"With the time that a checkpoint takes it gives how often one is made (default: an hour, which counts as " +
		"one " +
		"failure among those that are seen)."},
	"recovery.store": {"Where checkpoints are kept.", "Checkpoints, or snapshots of shards: file:///DIR, or " +
		"s3://BUCKET/PREFIX?endpoint=URL&region=NAME with the credentials of the environment or of ~/.aws " +
		"(default the " +
		"folder checkpoint in the run's)."},
	"recovery.keep-checkpoints": {"How many checkpoints are kept; 0: all.", "The newest stay. Under scar at " +
		"least two do."},
	"recovery.grace": {"How long the last checkpoint may take.", "When the job is ended early, by Ctrl-C, " +
		"SIGTERM or " +
		"perdure stop, a last checkpoint is made where the strategy keeps any; 0s: none is made. Ctrl-C again " +
		"ends the " +
		"job at once."},
	"recovery.no-replace": {"Start no server anew when one dies.", "The others take over what it held."},
	"recovery.max-failures": {"Give the job up when a program has failed so often at one clock.", "A failure is a " +
		"program's own end before its work is done, and no signal from outside. A wrong use of Perdure (code 2) " +
		"ends the job at the first. The count begins again when the slot's clock advances."},
	"recovery.take-over-after": {"Let the others take over from a server gone for so long.", "It gets a share again " +
		"when its next process comes. 0s: never, it is awaited (default 30s)."},
	"recovery.zone": {"The zone of server I; may be given again.", "A zone is a failure domain such as a " +
		"rack: copies " +
		"of a shard are kept in different ones where possible (default none)."},
	"recovery.zones": {"The zones of all servers, in turn.", "Over and over: with a,b server 0 is in a, 1 in " +
		"b, 2 in a " +
		"(default none)."},
	"recovery.retain-mb": {"Updates that each worker keeps, in MiB.", "Under resend, until they are in a " +
		"checkpoint; " +
		"when half of that is used a checkpoint is made before its time."},
	"recovery.log": {"The update log of stateless.", `
  file:?OPTIONS              a process of this job serves it, in the run's
                             folder (the usual)
  perdure://HOST:PORT?OPTIONS
                             perdure log --keys serves it, with the job's keys
  nats://HOST:PORT?OPTIONS   it is on a NATS cluster with JetStream, or served
                             by perdure log without keys; or tls://
OPTIONS are NAME=VALUE, with & between:
  sync=interval              (file) the system has an update, and syncs it every
                             few seconds: it survives any process's death, but
                             not the machine's (the usual)
  sync=always                (file) an update counts once it is on the disk
  mb=N                       MiB that it takes at most, over all shards; who
                             would append more waits (default 4096, or 32 for
                             each shard, or less where the disk has less)
  snapshot-mb=N              MiB of updates between two snapshots of the shards,
                             which cut the log (default 256)
  creds=FILE                 (nats) credentials, as nsc makes them
  ca=FILE                    (nats) the authority that vouches for the cluster
  cert=FILE                  (nats) this job's own certificate, with key=FILE
  replicas=N                 (nats) servers that keep each update, 1 to 5
For example 'file:?sync=always&mb=8192'; quote it, for the shell.`},

	"outages.on-outage": {"What workers do while a shard is out.", `
  wait             until a live server answers for it
  continue         read its rows from the cache, beyond what the consistency
                   model allows by up to 1000 clocks, and queue what it is to
                   get; nothing is lost
  continue:CLOCKS  likewise, by up to CLOCKS clocks
continue does not go with bsp, nor with recovery none and checkpoint:C.`},
	"outages.outage-rows": {"What reads see of a shard that is out.", "With --on-outage continue: frozen " +
		"(rows stay as " +
		"they were) or apply (what the worker itself adds to them shows)."},
	"outages.outage-mb": {"Most updates that a worker queues, in MiB.", "With --on-outage continue: those for " +
		"shards that are out; beyond that it waits."},
	"outages.suspend-after": {"Go on without a worker gone for so long.", "It takes part again when a process " +
		"comes. Not under bsp, which waits; 0s: never (default 30s, under bsp never)."},

	"faults.fault": {"A failure: kill:server:0@clock:100, say.", `
KIND:TARGET@WHEN[+FOR]; may be given again (default none).
  KIND    kill, term, freeze, cut, slow*X, jitter*X
  TARGET  server:I, worker:I (* for all), coordinator, log, shards:PART
  WHEN    clock:N, clock:N,TIME (so long after it), or a time since the start
  FOR     how long it lasts
For example 'kill:server:0@clock:100+2s'.`},
	"faults.delay": {"Send every message so much later.", "Of every message between the job's processes, drawn " +
		"anew for " +
		"each, for example 5ms or 5ms±2ms (default at once). Your own programs delay nothing themselves."},
	"faults.bandwidth": {"Bytes per second at most.", "Of each of the job's processes on each connection, for " +
		"example 100MB; also KB, GB, KiB, MiB, GiB (default as many as it can)."},
	"faults.compute-ms": {"Milliseconds that a clock computes at least.", "What is left of them is slept, and " +
		"takes no core."},

	"training.data": {"Data set's folder or file; see perdure data.", "Or synthetic:F (default the workload's " +
		"own)."},
	"training.init": {"Begin with a model that a run has made.", "A model.safetensors, or the folder of a run that " +
		"has one, of the same workload and with the same tables. Clocks, the schedule and the rule's state begin as " +
		"ever."},
	"training.lr":    {"Learning rate at clock 0.", "(default the workload's, as fits the rule)"},
	"training.batch": {"Examples per worker and clock.", "(default the workload's)"},
	"training.rule": {"How servers apply updates (default the workload's).", "sgd, momentum, nesterov, adagrad, " +
		"rowwise-adagrad, adam or ftrl, with settings behind it, for example adam,beta2=0.99,decay=0.01,clip-norm=5."},
	"training.combine": {"What becomes of the workers' updates of a clock.", "each: the rule runs for each of " +
		"them; sum, mean: it runs once, for their sum or mean; weighted: for their mean by examples (default each). " +
		"All but each need bsp; for softmax and cnn."},
	"training.sparse":      {"Keep the model in sparse tables.", "A row is stored from its first update on."},
	"training.schedule":    {"Learning rate over time.", "const, sqrt (rate/√(clock+1)) or step."},
	"training.step-every":  {"Schedule step: clocks between two steps.", ""},
	"training.step-factor": {"Schedule step: what the rate is multiplied by.", ""},
	"training.eval-every": {"Clocks or time between two evaluations.", "On the test set: a number of clocks, " +
		"by worker 0; or a time, for example 2s, by this command, which takes no worker's time; 0: only at the end."},

	"cnn.final-relu": {"A last ReLU on the scores.", "The authors of the network have it."},
	"cnn.partition": {"Tables are cut by row, or stay whole by layer.", "row cuts each table over all shards; " +
		"layer keeps " +
		"each on one of them, and scar saves and restores it as a whole."},
	"mf.rank":           {"Values in each user's and each item's row.", "(default the workload's)"},
	"mf.l2":             {"Weight of the rows' squares in the loss.", "For each rating (default the workload's)."},
	"mf.clock-fraction": {"Part of a worker's ratings in a clock.", "(default the workload's)"},
	"mf.whole-users": {"All ratings of some users in a clock.", "In turn; else a clock goes through ratings " +
		"drawn at " +
		"random."},

	"mf.solver": {"How rows are found (default sgd).", "sgd takes a step for each rating; als, alternating least " +
		"squares, finds each row at once, users' and items' in turn, exactly and without a learning rate."},
	"mf.implicit": {"als: values are counts of what was seen.", "A user is 1 + X times the count sure to want an " +
		"item that he has, and not what he has not; 0: they are ratings. 10 to 40 is usual."},

	"lda.topics": {"Topics that are looked for.", "(default the workload's)"},
	"lda.alpha": {"How many topics a document mixes.", "The Dirichlet prior of a document's mixture: below 1 few " +
		"topics, above it many (default the workload's)."},
	"lda.beta": {"How many words a topic has.", "The Dirichlet prior of a topic's words: the less it is, the fewer " +
		"(default the workload's)."},
	"lda.rebuild": {"Add lost counts again.", "Where a server's death has taken counts, workers make them those of " +
		"the assignments again; under models other than bsp each adds what its own documents had to them. For " +
		"recovery strategies that lose rows: none, scar, resend:C,partial and chain:N,async."},
	"lda.doc-topics": {"Who keeps documents' topics.", "slot: a worker remembers those that it has drawn. table: " +
		"they are on servers alone and read in each clock, so that rows that a death takes are lost: for comparison " +
		"with SCAR's paper."},
	"lda.clock-fraction": {"Part of a worker's documents in a clock.", "(default the workload's)"},

	"softmax.l2": {"Weight of the weights' squares in the loss.", "X/2 times their sum; the bias is left out."},
	"softmax.full-batch": {"All of a worker's examples in a clock.", "Then gradients are exact, and training is " +
		"plain gradient descent on a convex function."},
	"quadratic.rows":      {"Rows of x.", "(default the workload's)"},
	"quadratic.dim":       {"Values in each row.", "(default the workload's)"},
	"quadratic.condition": {"The largest curvature by the least.", "The larger, the slower (default the workload's)."},
	"quadratic.noise":     {"Deviation of what gradients are off.", "In each value; 0: they are exact."},

	"run.file": {"Read the job from a file; see perdure init.", "YAML or JSON. Its keys are the flags' names " +
		"without " +
		"dashes, and workload. Flags on the command line win."},
	"run.out": {"The run's folder, empty or new.", "(default runs/NAME-TIME)"},
	"run.resume": {"Go on from where an earlier run ended.", "From the last checkpoint of that run's folder, or " +
		"from its update log, with its settings. --clocks, --servers, --recovery, --mtbf, --until, --eval-every, " +
		"--fault, --delay, --bandwidth, --listen, --grace, --max-failures, --keep-checkpoints, --store, --exec and " +
		"--out may differ. Programs of your own begin at its clock. With train, --workers may differ, too."},
	"run.fork": {"Go on from a checkpoint as another run.", "From that of CLOCK, or the newest, with that run's " +
		"settings. What may differ is what may with --resume; scar can follow any strategy. That run is left as it " +
		"is, and may go on."},
	"run.from": {"Run that run.json again.", "With its settings; --fault, --delay, --bandwidth, --listen, --grace, " +
		"--max-failures, --store, --exec and --out may differ."},
	"run.quiet": {"Print one line, the result.", ""},
	"run.metrics": {"Show Prometheus how each process does.", "The coordinator at HOST:PORT, servers and then " +
		"workers at the ports after it; with port 0, as in 127.0.0.1:0, each at a free one. metrics.json in the " +
		"run's folder says where. Without a host it is this machine alone (default nowhere)."},
	"run.log-format": {"How logs are written: text or json.", "A line for each, with job, role and id."},
	"run.json":       {"Print the result as JSON, and nothing else.", "The document is that of summary.json."},
}
