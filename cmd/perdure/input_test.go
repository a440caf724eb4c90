package main

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/locate"
)

// mistakes are command lines and their expected results. FULL is a directory that contains a file, BADJSON is half a
// JSON file, and TAKEN is an address in use.
var mistakes = []struct {
	args string
	code int
	want string // a regular expression
}{
	{"", 2, `expected one of "train"`},
	{"fly", 2, `unexpected argument fly`},
	{"train --fly", 2, `unknown flag --fly`},
	{"train tetris", 2, `unknown workload "tetris"; choose softmax or cnn or mf`},
	{"train --consistency eventual", 2, `unknown consistency model "eventual"; choose`},
	{"train --consistency ssp:-1", 2, `not a whole number`},
	{"train --consistency=", 2, `--consistency is empty; write its value, or leave it out`},
	{"train --file=", 2, `--file is empty; write its value, or leave it out`},
	{
		"train --consistency w=eventual", 2,
		`table w: unknown consistency model "eventual"; choose bsp, ssp:S, essp:S, asp or vap:V`,
	},
	{"train --consistency w=asp,w=bsp", 2, `table w has two models in "w=asp,w=bsp"`},
	{"train --consistency asp,bsp", 2, `both asp and bsp in "asp,bsp" apply to all other tables`},
	{"train --consistency asp,,w=bsp", 2, `empty item in "asp,,w=bsp"`},
	{"train --consistency =bsp", 2, `"=bsp" in "=bsp" does not start with a valid table name; write TABLE=MODEL`},
	{"train --consistency ssp:2,v=bsp", 2, `--consistency names the unknown table v; the tables of softmax are w\n`},
	{"train --consistency vap", 2, `vap needs a bound`},
	{
		"train --consistency vap:0.5 --rule adam", 2,
		`table w: vap bounds the effect of updates on rows, which is known in advance only for rules add and sgd`,
	},
	{
		"train --consistency w=vap:0.5 --rule sgd,decay=0.1", 2,
		`table w: vap bounds the effect of updates on rows, which is known in advance only for rules add and sgd`,
	},
	{"train --compute-ms=-1", 2, `--compute-ms -1; choose 0 to 60000 milliseconds`},
	{"train --compute-ms 60001", 2, `--compute-ms 60001; choose 0 to 60000 milliseconds`},
	{"train --compute-ms 1.5", 2, `--compute-ms: expected`},
	{"train --cache-mb 0", 2, `--cache-mb 0; choose 1 to 1048576 MiB`},
	{"train --cache-mb=-1", 2, `--cache-mb -1; choose`},
	{"train --cache-mb 1048577", 2, `--cache-mb 1048577; choose`},
	{"up --consistency w=eventual", 2, `table w: unknown consistency model "eventual"`},
	{"up --consistency w=asp,w=bsp", 2, `table w has two models`},
	{"train --recovery magic", 2, `unknown recovery strategy "magic"; choose`},
	{"train --recovery checkpoint:0", 2, `not a whole number`},
	{"train --log file:?mb=600", 2, "--log configures the update log, which only"},
	{"up --log nats://a:1?key=a", 2, "--log configures the update log"},
	{"train --recovery stateless --log file:?mb=0", 2, "--log: mb is 0; a log of 16 shards needs at least 512"},
	{"train --recovery stateless --log file:?snapshot-mb=0", 2, "--log: snapshot-mb is 0; choose 1 to 4096"},
	{"log rm a", 2, "unexpected argument rm; to list or remove the streams of a log, use the NATS CLI: nats stream " +
		"ls, "},
	{"train --outage-mb 5", 2, "--outage-mb applies only to jobs that continue during an outage; leave it out, or " +
		"add --on-outage continue"},
	{"train --consistency asp --outage-rows frozen", 2, "--outage-rows applies only to jobs that continue during an " +
		"outage"},
	{"up --outage-mb 5", 2, "--outage-mb applies only to jobs that continue"},
	{"train --consistency asp --on-outage continue --outage-mb 0", 2, "--outage-mb 0; choose 1 to 4096"},
	{"train --stale-scale inverse", 2, "--stale-scale scales updates computed from stale rows, which do not occur " +
		"under bsp"},
	{
		"train --consistency asp --stale-scale half", 2,
		`scaling "half" for stale updates; choose none, inverse, paper or average`,
	},
	{
		"train --consistency asp --stale-scale average", 2,
		"--stale-scale average applies only if workers continue while a shard is unavailable",
	},
	{"train --recovery checkpoint:5 --retain-mb 5", 2, "only with --recovery resend:C"},
	{"train --recovery none --keep-checkpoints 5", 2, "--keep-checkpoints applies to checkpoints, but a job with this"},
	{"up --recovery chain:2 --keep-checkpoints 5", 2, "--keep-checkpoints applies to checkpoints"},
	{"train --keep-checkpoints=-1", 2, "--keep-checkpoints -1; choose 1 to 10000, or 0 to keep all"},
	{"train --retain-mb 0", 2, "--retain-mb 0; choose 1 to"},
	{
		"train --recovery resend:20 --mtbf 1h", 2,
		"--mtbf determines the automatic checkpoint interval",
	},
	{"up --recovery checkpoint:5 --mtbf 1h", 2, "--mtbf determines the automatic"},
	{
		"train --recovery resend:auto --mtbf 0s", 2,
		`--mtbf "0s"; write the mean time between failures, above 0, for example 6h`,
	},
	{"train --recovery resend:auto --mtbf=-1h", 2, `--mtbf "-1h"; write the mean time`},
	{"train --recovery resend:auto --mtbf=", 2, `--mtbf is empty; write its value`},
	{"train --recovery resend:auto --mtbf daily", 2, `--mtbf "daily"; write the mean time`},
	{
		"train --recovery checkpoint:automatic", 2,
		`not a whole number ≥ 1; write, for example, checkpoint:20, or checkpoint:auto`,
	},
	{"train --recovery chain:2,every:auto", 2, `interval "auto" in "chain:2,every:auto" is not a whole number`},
	{
		"train --recovery stateless --shards 4 --log file:?mb=130&snapshot-mb=131", 2,
		"--log: snapshot-mb is 131; choose 1 to 130",
	},
	{"train --recovery stateless --log file:?mb=3", 2, "a log of 16 shards needs at least 512"},
	{
		"train --recovery stateless --log nats://127.0.0.1:1?mb=17592186045416", 2,
		"--log: mb is 17592186045416; choose at most 1073741824",
	},
	{"log --dir nothing --mb 17592186045416", 2, "--mb 17592186045416; choose 1 to 1073741824"},
	{
		"train --recovery stateless --log file:?mb=1000000000", 2,
		"the update log may grow to 1000000000 MiB, but only [0-9]+ MiB are free for .*; free some space, " +
			"choose another --out, or set a smaller log with mb in --log .at least 512.",
	},
	{"train --recovery stateless --log file:?sync=never", 2, "choose interval or always"},
	{"train --recovery stateless --log file:?snapshot-mb=5000", 2, "choose 1 to 4096"},
	{"train --recovery stateless --log file:?creds=x", 2, "creds applies only to a log on a cluster"},
	{"train --recovery stateless --log here", 2, "write, for example, file:.sync=always&mb=4096, nats://HOST:PORT"},
	{"train --recovery stateless --log=", 2, "--log is empty"},
	{"train --recovery stateless --log http://me:secret@a:1", 2, "invalid --log http://a:1; write, for example, file:"},
	{"train --recovery stateless --log me:secret@a:1", 2, "invalid --log a:1; write, for example, file:"},
	{"train --recovery stateless --log nats://a:1?key=a", 2, "cert and key belong together"},
	{"train --recovery stateless --log nats://a:1?cert=a", 2, "cert and key belong together"},
	{"log verify nats://a:1?cert=a", 2, "cert and key belong together"},
	{"log verify nats://a:1?sync=always", 2, "sync applies only to the job's own log"},
	{"checkpoint ls /nonexistent", 2, "directory /nonexistent does not exist; specify a run's directory"},
	{"checkpoint verify /nonexistent@x", 2, "to choose the checkpoint of a clock, use /nonexistent@CLOCK"},
	{"checkpoint export / --to /", 2, "is a directory; choose a file"},
	{"checkpoint prune / --keep=-1", 2, "--keep -1; choose 1 or more, or 0 to keep all"},
	{"checkpoint prune /", 2, "missing flags: --keep=K"},
	{"train --recovery stateless --log nats://a:1?replicas=0", 2, "--log: replicas is 0; choose 1 to 5"},
	{"train --recovery stateless --log nats://a:1?replicas=6", 2, "--log: replicas is 6; choose 1 to 5"},
	{"train --recovery stateless --log file:?replicas=3", 2, "replicas applies only to a log on a cluster"},
	{"train --consistency asp --on-outage=", 2, "--on-outage is empty"},
	{"train --consistency asp --on-outage continue --outage-rows=", 2, "--outage-rows is empty"},
	{"train --consistency asp --stale-scale=", 2, "--stale-scale is empty"},
	{"train --fault kill:log@clock:1", 2, "this job has no log process"},
	{"train --recovery stateless --fault cut:log@clock:1", 2, "the log can only be killed, terminated or frozen"},
	{"train --recovery raid", 2, `unknown recovery strategy "raid"; choose none, checkpoint:C, resend:C, chain:N, ` +
		`chain:N,async, chain:N,every:K, chain:N,checkpoint:C, stateless or scar:C,R,SELECTOR`},
	{"train --recovery scar:0", 2, `interval "0" in "scar:0" is not a whole number`},
	{"train --recovery scar:20,2", 2, `share "2" in "scar:20,2" is not a number`},
	{"train --recovery scar:20,1/8,newest", 2, `unknown selector "newest"`},
	{"train --recovery chain:0", 2, `"chain:0" has an invalid number of replicas "0"; a chain needs 2 or more`},
	{"train --recovery chain", 2, `a chain needs 2 or more`},
	{"train --recovery chain:1", 2, `a chain needs 2 or more`},
	{"train --recovery chain:2,every:0", 2, `interval "every:0"|interval "0" in`},
	{
		"train --recovery chain:2,checkpoint:0", 2,
		`interval "0" in "chain:2,checkpoint:0" is not a whole number ≥ 1; write, for example, chain:2,checkpoint:100`,
	},
	{
		"train --recovery chain:2,async,checkpoint:20", 2,
		`combines checkpoints with a chain that may lose acknowledged updates, .*chain:2,checkpoint:100`,
	},
	{
		"train --recovery chain:2,checkpoint:20,checkpoint:20", 2,
		`has 2 options after the chain; write only one of async, every:K and checkpoint:C`,
	},
	{
		"train --recovery checkpoint:20,chain:2", 2,
		`for a chain with checkpoints write the chain first, for example chain:2,checkpoint:20`,
	},
	{"train --recovery chain:2,sync", 2, `unknown chain option "sync" in "chain:2,sync"`},
	{
		"train --recovery chain:9 --servers 3", 2,
		`chain:9 keeps each shard on 9 servers, but the job has only 3; use at least 9 servers, or a shorter chain`,
	},
	{"up --recovery chain:9 --servers 3", 2, `chain:9 keeps each shard on 9 servers, but the job has only 3`},
	{"train --zones a,,b", 2, `--zones: invalid zone name ""`},
	{"up --zones a/b", 2, `--zones: invalid zone name "a/b"`},
	{"server", 2, `no job given; add --join`},
	{"worker", 2, `no job given; add --join`},
	{"server --join 127.0.0.1:1", 2, `requires its secret; set --secret-file`},
	{
		"server --join 127.0.0.1:1 --secret-file ALONE", 2,
		`alone.servers: no such file or directory; a server also needs the file secret.servers`,
	},
	{"server --join 127.0.0.1:1 --secret-file SECRET", 1, `no job answers at 127.0.0.1:1: connection refused`},
	{"server --join 127.0.0.1:1 --zone a/b", 2, `invalid zone name "a/b"`},
	{"server --join 127.0.0.1:1 --coordinator 127.0.0.1:1", 2, `remove --coordinator`},
	{"train --workers 0", 2, `number of workers 0; choose`},
	{"train --workers=-1", 2, `number of workers -1; choose`},
	{"train --servers 0", 2, `number of servers 0; choose`},
	{"train --shards 0", 2, `number of shards 0; choose`},
	{"train --shards 786", 2, `786 shards are too many for .*785 rows`},
	{"train --clocks 0", 2, `--clocks 0; choose`},
	{"train --batch 0", 2, `batch of 0`},
	{"train --batch many", 2, `--batch: expected`},
	{"train --lr NaN", 2, `learning rate NaN`},
	{"train --lr=-1", 2, `learning rate -1`},
	{"train --lr Inf", 2, `learning rate \+Inf`},
	{"train --schedule cosine", 2, `unknown learning-rate schedule "cosine"; choose`},
	{"train --schedule step --step-factor NaN", 2, `factor NaN`},
	{"train --schedule step --step-every 0", 2, `every 0`},
	{"host --join 127.0.0.1:1 --signal-code 300", 2, `--signal-code: invalid exit code 300; choose 0 to 255`},
	{"study losses --repeat=-1", 2, `--repeat -1; choose 0 or more`},
	{"train --step-every 5", 2, `apply only to --schedule step, but the schedule is const`},
	{"train --servers 2 --zones a,b,c", 2, `3 zones for 2 servers`},
	{"train --eval-every=-1", 2, `--eval-every -1; choose`},
	{"train --until accuracy:NaN", 2, `--until "accuracy:NaN": write`},
	{"train --until accuracy:2", 2, `--until "accuracy:2": write`},
	{"train --until soon", 2, `--until "soon": write`},
	{"train --until accuracy:0.5x", 2, `--until "accuracy:0.5x": write`},
	{"train --until loss:+Inf", 2, `--until "loss:\+Inf": write`},
	{"train --until rmse:1", 2, `workload softmax has no rmse; choose accuracy or loss`},
	{"train mf --until accuracy:0.9", 2, `workload mf has no accuracy; choose loss or rmse`},
	{"train mf --lr 0", 2, `learning rate 0; choose`},
	{"train --until loss:1 --eval-every 0", 2, `--until needs --eval-every`},
	{"train --until rmse:0", 2, `--until "rmse:0": write`},
	{"train --rank 5", 2, `--rank is only valid with perdure train mf; remove it`},
	{"train --whole-users", 2, `--whole-users is only valid with perdure train mf`},
	{"train cnn --l2 1", 2, `--l2 is only valid with perdure train softmax and perdure train mf`},
	{"train mf --final-relu", 2, `--final-relu is only valid with perdure train cnn`},
	{"train cnn --shards 17", 2, `17 shards are too many for table conv1.weight of 16 rows`},
	{"train cnn --rule ftrl", 2, `cnn: rule ftrl starts from zeros`},
	{"train --rule ftrl --recovery scar", 2, `table w: selector priority does not work with rule ftrl`},
	{"bench recovery --workload mf", 2, `--workload mf has no batches`},
	{"bench recovery --workload svm", 2, `unknown workload "svm"`},
	{"train --combine avg", 2, `--combine: unknown combine mode "avg"; choose each, sum, mean or weighted`},
	{
		"train --combine mean --consistency ssp:2", 2,
		`table w: combine mean does not work with ssp:2`,
	},
	{"train cnn --combine sum --consistency bias=asp", 2, `table bias: combine sum does not work with asp`},
	{"train mf --combine mean", 2, `mf: combine mean works only for softmax and cnn`},
	{"train mf --batch 8", 2, `mf has no batches: remove the batch size`},
	{"train mf --rule adam", 2, `mf does not support rule adam`},
	{"train mf --rank 0", 2, `mf: invalid rank 0; choose 1 to`},
	{"train mf --l2 NaN", 2, `mf: l2 NaN is not`},
	{"train mf --clock-fraction 0", 2, `mf: invalid clock fraction 0; choose 2e-05 to 1`},
	{"train mf --data synthetic:many", 2, `synthetic:many: "many" is not a number; choose`},
	{"train mf --data /nonexistent", 1, `/nonexistent: no such file`},
	{"train mf --data FULL", 1, `is a directory; choose the file`},
	{"train mf --data FULL/notes.txt", 1, `notes.txt: line 1: 1 columns; write "user,item,rating"`},
	{"train --fault kill", 2, `has no target`},
	{"train --fault kill:server:2@1s", 2, `there is no server:2; this job has 2 servers`},
	{"train --fault kill:worker:4@1s", 2, `there is no worker:4; this job has 4 workers`},
	{"train --fault kill:log@1s", 2, `no log process`},
	{"train --fault slow*NaN:worker:0@1s", 2, `factor "NaN"`},
	{"train --delay soon", 2, `--delay "soon": write a time`},
	{"train --delay 5", 2, `--delay "5": write a time`},
	{"train --delay=-5ms", 2, `--delay "-5ms": write a time`},
	{"train --delay 5ms±", 2, `--delay "5ms±": write a time`},
	{"train --delay 5ms±2ms±1ms", 2, `--delay "5ms±2ms±1ms": write a time`},
	{"train --delay 5ms+-6ms", 2, `--delay "5ms\+-6ms": a message cannot arrive before it is sent; choose a ` +
		`spread of at most 5ms`},
	{"train --delay 400ms±200ms", 2, `--delay "400ms±200ms": choose at most 500ms`},
	{"train --bandwidth fast", 2, `--bandwidth "fast": write bytes per second`},
	{"train --bandwidth 100", 2, `--bandwidth "100": write bytes per second`},
	{"train --bandwidth MB", 2, `--bandwidth "MB": write bytes per second`},
	{"train --bandwidth NaNMB", 2, `--bandwidth "NaNMB": write bytes per second`},
	{"train --bandwidth 100Mb", 2, `--bandwidth "100Mb": write bytes per second`},
	{"train --bandwidth 1KB", 2, `--bandwidth "1KB": choose 100KB to`},
	{"train --bandwidth InfGB", 2, `--bandwidth "InfGB": choose 100KB to`},
	{"train --bandwidth=-1MB", 2, `--bandwidth "-1MB": choose 100KB to`},
	{"up --delay soon", 2, `--delay "soon": write a time`},
	{"up --bandwidth fast", 2, `--bandwidth "fast": write bytes per second`},
	{"train --data /nonexistent", 1, `/nonexistent: no such directory; choose`},
	{"train --data FULL", 1, `holds neither`},
	{"train --out FULL", 2, `is not empty \(it contains notes.txt\); choose`},
	{"train --out FULL/notes.txt", 2, `is a file; choose`},
	{"train --out /proc/perdure", 2, `cannot write to /proc/perdure`},
	{"train --listen 127.0.0.1", 2, `write HOST:PORT`},
	{"train --listen 0.0.0.0:0", 2, `specify the address`},
	{"train --listen TAKEN", 1, `address already in use; choose another`},
	{"train --resume /nonexistent", 2, `no such file`},
	{"train --resume FULL", 1, `is not a run's settings file`},
	{"train --from BADJSON", 1, `is not a run's settings file: unexpected end`},
	{"train --resume FULL --seed 2", 2, `--seed cannot be changed with --resume`},
	{"up --workers 0", 2, `number of workers 0; choose`},
	{"status", 2, `no run in runs/; specify one`},
	{"status --run FULL", 1, `is not a run's directory`},
	{"status --address 127.0.0.1:1", 2, `requires its secret; set --secret-file`},
	{"status --address 127.0.0.1:1 --secret-file SECRET", 1, `no coordinator answers`},
	{"stop --address 127.0.0.1:1 --secret-file SECRET", 1, `no coordinator answers`},
	{"fault kill:server:0@1s --address 127.0.0.1:1 --secret-file SECRET", 1, `no coordinator answers`},
	{"status --address 127.0.0.1:1 --secret-file FULL", 2, `secret`},
	{"status --address 127.0.0.1:1 --secret-file BADJSON", 2, `secret`},
	{"bench workloads --workload svm", 2, `unknown --workload "svm"; choose mf, als, als-100, softmax, cnn, logreg`},
	{"bench workloads --rounds 0", 2, `number of rounds 0; choose`},
	{"bench workloads --data no/such.csv", 1, `no/such.csv: no such file`},
	{"bench workloads --consistency essp", 2, `essp:3 for the default`},
	{"bench workloads --workers 0", 2, `number of workers 0; choose`},
	{"bench workloads --recovery never", 2, `unknown recovery strategy "never"`},
	{"bench recovery --recovery never", 2, `unknown recovery strategy "never"`},
	{"bench recovery --recovery chain:4", 2, `chain:4 keeps each shard on 4 servers, but the job has only 3`},
	{"bench recovery --fault explode", 2, `unknown --fault "explode"; choose kill:head, kill:middle`},
	{
		"bench recovery --recovery chain:2 --fault kill:middle", 2,
		`--fault kill:middle needs a chain of 3 replicas; add --recovery chain:3`,
	},
	{
		"bench recovery --recovery chain:2 --fault kill:log", 2,
		`--fault kill:log needs an update log; add --recovery stateless`,
	},
	{"bench recovery --measure fun", 2, `unknown --measure "fun"; choose train, push, faults, save, rows, replay`},
	{"bench recovery --measure replay --servers 7", 2, `7 servers are too many for 6 shards`},
	{"bench recovery --measure replay --shards 0", 2, `number of shards 0; choose`},
	{"bench recovery --measure replay --mb -1", 2, `--mb`},
	{
		"bench recovery --measure replay --recovery stateless", 2,
		`--recovery stateless: --measure replay does not compare strategies; remove --recovery`,
	},
	{"bench recovery --measure save,replay --recovery chain:2", 2, `--measure save,replay does not compare strategies`},
	{"bench recovery --rounds 0", 2, `number of rounds 0; choose`},
	{"bench recovery --mb -1", 2, `--mb`},
	{"bench recovery --mb 100001", 2, `--mb 100001; choose 0 to 100000`},
	{"bench recovery --workers 0", 2, `number of workers 0; choose`},
	{"bench recovery --json FULL", 2, `is a directory; choose a file`},
	{"bench --op fly", 2, `unknown --op "fly"; choose pull, push`},
	{"bench --rule ftrl", 2, `unknown --rule "ftrl"; choose add, sgd, adam`},
	{"bench --size 4MiB,5MiB", 2, `unknown --size "5MiB"; choose 4KiB, `},
	{"bench --socket quic", 2, `unknown --socket "quic"; choose tcp, unix`},
	{"bench --conns 0", 2, `--conns 0 to 0; choose 1 to 64`},
	{"bench --conns 1,65", 2, `--conns 1 to 65; choose 1 to 64`},
	{"bench --conns few", 2, `--conns: expected`},
	{"bench --rounds 0", 2, `number of rounds 0; choose`},
	{"bench --time 0s", 2, `--time 0s; choose`},
	{"bench --time 2h", 2, `--time 2h0m0s; choose`},
	{"bench --time soon", 2, `--time: expected`},
	{"bench --raw-conns=-1", 2, `--raw-conns -1; choose 1 to 64`},
	{"bench --raw-conns 65", 2, `--raw-conns 65; choose 1 to 64`},
	{"bench --shards=-1", 2, `number of shards -1; choose`},
	{"bench --shards 1025", 2, `number of shards 1025; choose 1 to 1024`},
	{"bench --json FULL", 2, `is a directory; choose a file`},
	{"bench --json /nonexistent/b.json", 2, `cannot write the file: no such file`},
	{"data fetch imagenet", 2, `unknown data set "imagenet"; choose`},
	{"data fetch jester", 2, `run perdure data convert jester FILE`},
	{"data convert imagenet x", 2, `unknown data set "imagenet"; choose jester or`},
	{"data convert jester /nonexistent", 1, `/nonexistent: no such file`},
	{"data convert jester", 2, `expected "<from>"`},
}

// TestBadInput: every mistake yields a one-line error and the right exit code, and leaves no files.
func TestBadInput(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	must(t, os.WriteFile(filepath.Join(full, "notes.txt"), []byte("mine"), 0o666))
	badJSON := filepath.Join(t.TempDir(), "run.json")
	must(t, os.WriteFile(badJSON, []byte(`{"job":`), 0o666))
	secret := filepath.Join(t.TempDir(), "secret")
	alone := filepath.Join(t.TempDir(), "alone")
	for _, name := range []string{secret, secret + locate.ServersExt, alone} {
		must(t, os.WriteFile(name, []byte(strings.Repeat("ab", 32)+"\n"), 0o600))
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { // after all parallel cases have ended
		must(t, taken.Close())
		if b, err := os.ReadFile(filepath.Join(full, "notes.txt")); err != nil || string(b) != "mine" {
			t.Errorf("the user's file is now %q (%v)", b, err)
		}
	})

	names := strings.NewReplacer("FULL", full, "BADJSON", badJSON, "SECRET", secret, "ALONE", alone, "TAKEN",
		taken.Addr().String())
	for _, c := range mistakes {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			p := command(t, strings.Fields(names.Replace(c.args))...)
			p.Dir = t.TempDir()
			p.Start()
			code, _, text := p.Wait()
			if code != c.code || !regexp.MustCompile(c.want).MatchString(text) {
				t.Errorf("exit code %d and %q; want %d and %s", code, text, c.code, c.want)
			}
			if !strings.HasPrefix(text, "perdure: ") || strings.Count(text, "\n") != 1 {
				t.Errorf("the error is not one line: %q", text)
			}
			if left, err := os.ReadDir(p.Dir); err != nil || len(left) > 0 {
				t.Errorf("files are left: %v %v", left, err)
			}
		})
	}
}

// TestBadCheckpoint: an invalid checkpoint is rejected with a one-line error that names the file. The run that would
// resume creates no directory.
func TestBadCheckpoint(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, small()...)
	glob := func(dir, pattern string) string {
		names, err := filepath.Glob(filepath.Join(dir, "checkpoint", pattern))
		must(t, err)
		if len(names) == 0 {
			t.Fatalf("no %s in %s", pattern, dir)
		}
		return names[len(names)-1]
	}
	edit := func(pattern string, change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := glob(dir, pattern)
			b, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, change(b), 0o666))
		}
	}
	cut := func(b []byte) []byte { return b[:len(b)/2] }
	flip := func(b []byte) []byte { b[len(b)/2] ^= 4; return b }
	cases := []struct {
		name  string
		spoil func(*testing.T, string)
		want  string
	}{
		{"segment truncated", edit("*.segment", cut), `\.segment`},
		{"segment flipped", edit("*.segment", flip), `\.segment`},
		{"manifest truncated", edit("*.manifest", cut), `manifest`},
		{"manifest flipped", edit("*.manifest", flip), `manifest`},
		{
			"all gone", func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, "checkpoint"))) },
			`checkpoint`,
		},
		{"of another job", func(t *testing.T, dir string) {
			path := filepath.Join(dir, "run.json")
			b, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, regexp.MustCompile(`"id": "[0-9a-f]+"`).ReplaceAll(b,
				[]byte(`"id": "0123456789abcdef"`)), 0o666))
		}, `0123456789abcdef`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			copied, out := newFolder(t), filepath.Join(t.TempDir(), "out")
			must(t, os.CopyFS(copied, os.DirFS(dir)))
			c.spoil(t, copied)
			code, stdout, stderr := invoke(t, "train", "--quiet", "--resume", copied, "--clocks", "70", "--out", out)
			if strings.HasPrefix(c.name, "manifest") && code == 0 {
				return // an older checkpoint is intact: the run resumes from it
			}
			if code != 1 || !regexp.MustCompile(c.want).MatchString(stderr) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit code %d, stdout %q, stderr %q; want 1 and one line with %s", code, stdout, stderr,
					c.want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("the rejected run created its directory")
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Only folders that a run has are named at its end.
