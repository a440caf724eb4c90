package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// fillHelp puts the long texts into flags and commands: a tag's help "@name" begins with the
// text of that name. They are no variables of kong's, which copies all that there are for each
// flag: that costs each process of a job a tenth of a second.
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

// helpOf is a tag's help with the text that it names, if it names one.
func helpOf(tag string) (string, error) {
	name, names := strings.CutPrefix(tag, "@")
	if !names {
		return tag, nil
	}
	rest := strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz_")
	name = name[:len(name)-len(rest)]
	text, known := helps[name]
	if !known {
		return "", fmt.Errorf("there is no help %s", name)
	}
	return text + rest, nil
}

// helps are the texts of flags and commands that are too long for the struct's tag.
var helps = map[string]string{
	"perdure_study": "Run a study: what is varied, how machines fail and how often each is tried stand in a file. " +
		"perdure study FILE is perdure study run FILE, whose help has the flags.",
	"study_run": "Run a study that is in a file, or go on with it: what is done is not done again. A run whose " +
		"folder is deleted is done again, too.",
	"runs_prices": "Say what runs cost, by that file of prices: on demand, as spot machines, and as part of a " +
		"month's price, in which idle time is paid, too.",
	"study_losses": "Say what the death of servers costs a training in iterations, by strategy: it is trained in " +
		"memory, loses servers at clocks that are drawn, and comes to its loss again. For example: " +
		"perdure study losses --lost 1/2 -- mf --solver als",
	"losses_recovery": "A strategy that is tried, checkpoint:C, scar:C,R,SELECTOR or none; once for each. All are " +
		"compared with the first (default: checkpoint:16, and scar:16 with R 1, and with 1/8 by each selector).",
	"losses_mean": "Mean of the clock of a failure, drawn from a geometric distribution (default: a third of " +
		"--clocks).",
	"losses_measure": "What a model is judged by at each clock: the loss on what it is trained on, or on other " +
		"examples, or its distance to the best, with bounds (default: test if clocks take batches, else train).",
	"losses_perturb": "A perturbation that is no death: random:X, adversarial:X (X of the way from the first rows " +
		"to the best), reset:PART of the rows, or stale:CLOCKS, by which all reads are old; once for each.",
	"losses_smooth":   "Clocks whose mean the loss is that a model is judged by: it evens out the noise of batches",
	"losses_lose":     "What PART is of: servers, whose shards are neighbours, or any shards, as if they lay anyhow",
	"losses_trials":   "Forks of each",
	"losses_failures": "Failures in each fork, at clocks that are drawn",
	"losses_saved_as": "What rows that scar has saved come back as: as they were, or rounded",
	"losses_lost":     "Part of the servers that dies; once for each",
	"losses_twins":    "Undisturbed runs, each with the next seed",
	"losses_out":      "Folder for costs.json, trials.csv, and these as a table and drawn.",
	"losses_strike":   "When a failure strikes: between two clocks, or amid one, when all have read",
	"losses_sample":   "Test examples that it is judged on, where the workload can choose some",
	"losses_train":    "Behind --: what is trained, as for perdure train.",
	"losses_repeat":   "Trials to be repeated with servers that are really killed; their models must be the same.",
	"study_init":      "Write a study that one may begin with.",
	"study_out":       "The folder of all its runs (default runs/NAME, with --quick runs/NAME-quick).",
	"study_quick":     "Try the study out, with what its file says under quick.",
	"study_mixed":     "Let runs of another build of perdure count, which the study refuses otherwise.",
	"study_parallel":  "Runs at a time; they take each other's cores",
	"perdure_stop":    "End a running job in order; its train then exits with code 130, its up with 0.",
	"perdure_server": "Add a server to a running job, in a place that is empty; it waits for one. SIGTERM " +
		"makes it hand over what it holds, and end.",
	"perdure_coordinator": "Be the coordinator of a job of many hosts. Its first start makes the job, in --dir; " +
		"each later one goes on with it. A signal ends the coordinator and not the job; perdure stop ends that.",
	"coordinator_job": "The job's file, as of train -f. With workload: own its workers are programs of your own, and " +
		"its keys are the flags of up.",
	"coordinator_dir": "The job's folder, of this job alone: what it is, its secrets, its registry, its " +
		"checkpoints.",
	"coordinator_listen": "Where servers, workers and hosts reach it (default 127.0.0.1:7000).",
	"coordinator_advertise": "The address that others are told, where it is another one than --listen says: a name, " +
		"or that in front of a NAT. Without a port it has the port of --listen.",
	"coordinator_control": "Where perdure status and perdure stop reach it (default a free port of this machine, " +
		"which --dir's file control has).",
	"perdure_host": "Keep servers and workers of this machine alive, in a job of many hosts. SIGTERM has workers " +
		"leave at a clock, and then servers hand over what they hold; a second one ends all at once.",
	"host_join": "Where the job's coordinators listen, with commas between them; they are tried in turn. @FILE " +
		"reads them from a file, again for each try.",
	"host_servers": "How many servers",
	"host_workers": "How many workers",
	"host_dir": "The host's own folder, with the logs of its processes; also with the secret, unless --secret-file " +
		"names it",
	"host_listen": "Where servers are reached; each has the port after that of the one before, or, without a port, a " +
		"free one (default the address of this machine that leads to the coordinator).",
	"host_advertise": "What others are told of servers, where it is another address than --listen says.",
	"host_zone":      "The failure domain of this host's servers, such as a rack (default none).",
	"host_name":      "What people call this host, for perdure drain (default the machine's name).",
	"host_notice": "How long the host has, once it is to end: then whoever is left ends with what others " +
		"have not taken over. A little less than the notice before the machine is taken, such as 25s of 30 s " +
		"(default: as long as it takes).",
	"host_notice_command": "Run by sh again and again, 2 s after its last end; once it ends with 0, the machine is " +
		"to be taken, and the host ends in order. For example a look into the cloud's metadata.",
	"server_notice": "How long it has to hand over once it is told to end; then it ends anyway (default: as long as " +
		"it takes).",
	"perdure_drain": "Have others take over all that a server or a host holds, and end it. Shows what is left until " +
		"that is done; exit code 1, and a line that says what was not handed over, where its notice was over before.",
	"drain_who": "A server, as server:3, or the name of a host: all its servers, and its workers, which leave.",
	"drain_notice": "End it after that time, whatever is left (default: as long as it takes, or what the host was " +
		"told).",
	"host_logs": "Where what its processes say goes: files, in its folder's logs/, or output, with the host's " +
		"own log",
	"signal_code": "Exit code when a signal ends it before its job is over: a supervisor that starts again only who " +
		"has failed, as Kubernetes does, wants another one than that of success",
	"host_command": "What a worker runs: a program of your own, behind --, with its arguments (default perdure " +
		"worker, for jobs of perdure train).",
	"server_advertise": "The address that others are told, where it is another one than --listen says.",
	"perdure_agent": "Be the worker of the program that starts this, in a language other than Go. Its package does " +
		"that; nobody else needs to.",
	"metrics": "Show at this address how the process does: /metrics for Prometheus, /healthz, /readyz. Without a " +
		"host it is this machine alone (default nowhere).",
	"log_format": "How the log is written, a line for each: text, or json",
	"agent_fd":   "The open file that is the socket to the program",
	"perdure_worker": "Add a worker to a running job, in a slot that nobody works in. SIGTERM makes it finish " +
		"its clock, and leave.",
	"perdure_report": "Make a page of runs to read and hand on: what came of them in plain sentences, pictures, " +
		"tables, settings, and how to run them again.",
	"report_folders": "Runs' folders, or folders with runs below them. Runs that differ in nothing but their seed " +
		"are trials of one group.",
	"report_out": "Where to write it: an .html file, which needs nothing else, or an .md file, with its pictures " +
		"beside it",
	"study_report": "Run nothing: collect the results of the runs that have finished, also while the study runs.",
	"perdure_export": "Write the model of a run as safetensors: the one that it has made, or of a run that goes on " +
		"or has failed that of its newest whole checkpoint.",
	"perdure_predict": "Predict by a model that was trained: ratings of items by users (mf), or the classes of " +
		"examples (softmax, cnn, logreg). It prints CSV.",
	"predict_model": "The model's file, or the folder of the run that made it.",
	"predict_user":  "mf: a user whose best items are wanted; may be repeated.",
	"predict_known": "mf: a file of ratings, for example those trained on; their items are left out of the best.",
	"predict_data": "softmax, cnn, logreg: the examples (default those that training takes by default). Of a folder " +
		"the test part is classified; of a file, of logreg or a CSV of CoverType (softmax, logreg), all lines.",
	"export_run":         "The run's folder.",
	"perdure_checkpoint": "Look into the checkpoints that a run keeps, make a model of one, or delete old ones.",
	"perdure_bench": "Measure what Perdure costs here: pushes and pulls against a raw exchange of the same " +
		"bytes, or whole workloads against a plain loop.",
	"target_run":     "The run's folder (default the newest in runs/).",
	"target_address": "The address of the control API, instead of --run.",
	"fault_spec": "KIND:TARGET@WHEN[+FOR], as for train --fault, for example kill:server:0@0s. A time or clock " +
		"that is over means now.",
	"scale_workers": "How many workers are to take part. Of too many, those that joined last leave; the job's " +
		"parent starts what is missing.",
	"scale_at": "The clock from which this is so; nothing changes if a worker has begun it (default the next " +
		"that none has begun).",
	"join_join": "Join the running job at this address, which perdure status shows; the control API's, which " +
		"the run's folder has in its file control, does too. Several, of coordinators, have commas between them; " +
		"@FILE reads them from a file, anew for each try.",
	"join_run":         "The run's folder, or a copy of its run.json in one (default where the job says that it is).",
	"join_coordinator": "The coordinator's address, of a process that the run's parent starts.",
	"keys": "The folder of keys that this process shows, of a job whose connections are private: its role's, as " +
		"perdure keys new makes it, or the folder with all (default none).",
	"coordinator_registry": "Where it keeps the job's facts: the path of a file, or " +
		"etcd://HOST:PORT,HOST:PORT/PREFIX, which several coordinators on several machines share: one leads, and " +
		"the others stand by (default in --dir).",
	"insecure": "Let others reach it without keys: nothing is encrypted then.",
	"coordinator_insecure": "Let others reach it without keys, and let what goes to a registry, a store or a log on " +
		"another machine go unencrypted.",
	"perdure_keys": "Make, list, renew and revoke the keys of a job that others can reach, and make tokens.",
	"keys_new": "Make a folder of keys: a certificate for each role, and what signs them. Whoever has the keys " +
		"of a role may do what that role does.",
	"keys_issue": "Make keys for one more machine or person, so that these alone can be revoked.",
	"keys_renew": "Make new keys for those who have some, or for those who are named. A running job goes on with " +
		"them once their files are there.",
	"keys_revoke": "Revoke certificates and tokens: processes of a job refuse them once they have the new list. A " +
		"name stands for all that its holder has ever been issued and that has not run out.",
	"keys_dir":   "The folder that perdure keys new has made.",
	"keys_days":  "How long they are good, in days",
	"keys_job":   "Whose keys they are: a name that stands in all certificates",
	"keys_role":  "What the keys are for: coordinator, server, worker, operator or viewer.",
	"keys_names": "Folders within it, such as server or worker-alice (default all).",
	"keys_revoke_names": "Names of holders as their folders have them, such as worker-alice; or serial numbers of " +
		"certificates and tokens.",
	"keys_token": "Print a token, for a tool that cannot show a certificate to a job's control API: a call of curl, " +
		"a dashboard. Whoever has it may do what its role may.",
	"keys_token_role": "What it lets a tool do: viewer (look) or operator (steer, and stop).",
	"keys_token_for":  "How long it is good, such as 24h.",
	"keys_token_name": "Whose it is, for the log",
	"token": "Show the token in this file instead of a certificate; ca.pem of the job's keys lies beside it, or in " +
		"the folder that --keys names.",
	"secret": "The file with the run's secret (default the file secret in the run's folder; a " +
		"server needs that folder's secret.servers beside it).",
	"server_listen": "Where to listen for workers: an address at which they reach this machine; port 0 picks a " +
		"free one",
	"server_zone":       "The failure domain that this server is in, such as a rack (default none).",
	"worker_lost_after": "End when no process of the job has been heard for so long; 0s: never",
	"outage_mb": "Most updates that this worker queues for shards that are out, in MiB, where the job " +
		"goes on without them; 0: as the job says",
	"logs_serve": "Serve update logs from a folder (the default).",
	"checkpoint_ls": "List the checkpoints of a run, the newest first: clock, age, bytes, files, strategy, " +
		"and whether all files are there; of those of scar how old their rows may be, too.",
	"checkpoint_show": "Say what is in a checkpoint: its job, its tables, and of each shard the files; of one " +
		"of scar, whose rows are each of a clock of its own, also how old they are, which reads them.",
	"checkpoint_verify": "Read every byte of a run's checkpoints, or of its snapshots of shards; say what is " +
		"wrong, a line for each defect, and then end with code 1.",
	"checkpoint_export": "Write the model of a checkpoint as safetensors, as a run writes its own; of one of scar " +
		"with each row as it would come back.",
	"checkpoint_prune": "Delete all checkpoints but the newest whole ones, and files that belong to none. Those " +
		"that stay are read first. The run must have ended.",
	"checkpoint_dir": "A run's folder, its folder of checkpoints, or the URL of its store.",
	"checkpoint_one": "A run's folder, its folder of checkpoints, or the URL of its store; @CLOCK after it names the " +
		"checkpoint of a clock",
	"runs_compare": "Hold runs side by side: the settings that differ, and how each ended.",
	"runs_export":  "Write runs as CSV, or for TensorBoard.",
	"runs_rm": "Delete runs that have ended: all that they have written into their folders. What else is in " +
		"these stays.",
	"runs_folders": "Runs' folders, or folders with runs below them (default runs).",
	"runs_sort": "Order: name, began, time, result (the best first), faults or lost (default as the folders are " +
		"found).",
	"runs_two":         "The runs' folders; of a folder with runs below it all are taken.",
	"runs_all":         "Show settings that are the same, too.",
	"runs_csv":         "A row for each run: what runs ls has, and each setting.",
	"runs_series":      "A row for each measurement of each run.",
	"runs_tensorboard": "A folder for each run, with its measurements as TensorBoard reads them.",
	"runs_ended":       "The run's folder.",
	"checkpoint_keep":  "How many whole checkpoints to keep, the newest; 0: all, and only files of none are deleted.",
	"serve_dir":        "The log's folder; it is made where it is not there.",
	"serve_listen":     "Where to listen (default ${default}: a free port, after a restart the same).",
	"serve_sync": "When an update counts as in the log: interval (the system has it: it survives any process's " +
		"death, but not the machine's) or always (it is on the disk) (default ${default}).",
	"serve_mb": "What all streams take on the disk at most, in MiB (default three quarters of what is free).",
	"serve_keys": "The folder of the job's keys, or of its servers: the log shows a server's, and asks who connects " +
		"for his (default none).",
	"place_place": "A run's folder, or a log's, whose process may run or not; or where any log is served, as " +
		"perdure://HOST:PORT or nats://HOST:PORT?creds=FILE&ca=FILE&cert=FILE&key=FILE.",
	"place_keys": "The folder of an operator's keys, or of all roles' keys, for a log that asks for keys (default " +
		"the run's keys).",
	"place_job": "Only this job's streams (default all).",
	"dump_from": "The first position to show (default the first there is).",
	"dump_most": "How many records to show, 1 or more (default all).",
	"bench_moves": "Pushes and pulls of blocks and rows against a raw exchange of the same bytes (the " +
		"default).",
	"bench_recovery": "What recovery strategies cost while nothing fails, and how long a failure is felt under " +
		"them.",
	"bench_workloads": "Training programs, in real processes, against the same kernel in a plain loop on one " +
		"thread.",
	"moves_op": "What to measure: pull, push (deltas computed where the update has them), inc (deltas copied " +
		"by Inc, first rule only) (default all).",
	"moves_rule": "Update rules to push and inc with: add, sgd, adam (default all).",
	"moves_size": "Blocks to move: 4KiB, 64KiB, 4MiB, 40MB of a dense table, 1000rows, 100000rows of a sparse " +
		"one (default all).",
	"moves_rounds": "Rounds of each measurement; a round is one of Perdure and one of the raw exchange",
	"moves_time": "How long a measurement takes, all its rounds together; large blocks take longer, for a " +
		"round has at least one operation",
	"moves_shards": "Parts that every table is split into, all on one server (default 1 for blocks of 4 and 64 " +
		"KiB, 8 for larger ones, the number of CPUs for rows; at least as many as connections).",
	"moves_raw": "Connections of the raw exchange (default one, or as many as Perdure has where that is " +
		"faster).",
	"strategies_recovery": "Recovery strategy; may be given again (default none, checkpoint:20, resend:20, " +
		"chain:2, chain:3, stateless, scar:20,1/8,priority).",
	"strategies_fault": "What fails: kill:head, kill:middle or kill:tail, of a chain; kill:server, " +
		"freeze:server (for good), cut:server (off the network, for good) or term:server (told to end), any one; " +
		"kill:coordinator; kill:log, of stateless (default all that the strategy has).",
	"strategies_measure": "What to measure: train (speed of training, of that under none), push (speed of " +
		"pushes of 4 MiB, likewise), faults, save (a checkpoint of --mb, or 500, MB while training goes on, and " +
		"while it does not; no --recovery), rows (what scar's selectors cost that save as many bytes as --mb, or " +
		"500, MB of rows have in --mb/50 s; no --recovery), replay (how fast --mb, or 500, MB of updates are read " +
		"from the log again when a server of stateless is killed; one server and one worker unless --servers says " +
		"otherwise; no --recovery) (default train, push and faults).",
	"strategies_rounds": "Rounds of each measurement",
	"strategies_mb":     "faults: a model of N MB, beside softmax's small one",
	"strategies_snapshot": "faults: also how fast a server that joins a chain copies its shards, and how fast " +
		"they are read meanwhile, and how long a server drains; it takes --mb to be worth something.",
	"strategies_shards":      "Parts that every table is split into",
	"strategies_consistency": "Model of all tables; pushes are measured under asp",
	"strategies_workload":    "train: what is trained, a workload with batches",
	"strategies_batch":       "train: examples per worker and clock",
	"strategies_clocks":      "train: clocks of each job",
	"strategies_seed":        "Seed of which servers fail",
	"programs_workload": "What to train: mf (rank 100, clocks of a tenth of the ratings, whole users), als " +
		"(mf --solver als, rank 32), als-100 (the same, rank 100), softmax (batch 64), cnn (batch 128), logreg " +
		"(batch 2048), lda, quadratic (100,000 values; default all).",
	"programs_data":        "mf, als and als-100: file of ratings, or synthetic:F",
	"programs_consistency": "Model of all tables",
	"programs_recovery":    "Recovery strategy",
	"programs_shards":      "Parts that every table is split into",
	"programs_rounds":      "Rounds; each is one job and one plain loop",
	"programs_clocks": "Clocks of each job of mf, cnn, logreg, lda and quadratic; als has a tenth of them, als-100 " +
		"a hundredth, and softmax, whose clocks are small, 100 times as many",
	"demo_out":  "Folder for the two runs, empty or new (default a new one in the system's temporary folder).",
	"demo_seed": "Seed of all that is drawn at random",
	"fetch_dir": "Folder to put it into, under its own name",
}
