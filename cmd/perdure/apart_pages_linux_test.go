package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// The tests in this file follow pages of the guide on separate machines: they extract the commands from the pages and
// run them. Each machine has the address from the page, a name, and a working directory. Its PATH has perdure, and an
// ssh and an scp that use the file system instead of a network.

// typedProgram stands for ./train, the user's own program.
const typedProgram = "typed"

func init() { wholePrograms[typedProgram] = runTyped }

// typedRows is the number of rows that it trains.
const typedRows = 32

// runTyped is the program's main function. It adds 1 to each row in each clock, and fails if it reads anything but the
// sum of all slots' updates. A clock takes 30 ms until a file named "hurry" exists next to it.
func runTyped([]string) int {
	err := worker.Run(context.Background(), worker.Config{}, func(ctx context.Context, c *worker.Client) (
		worker.Step, error,
	) {
		table, err := c.Table(ctx, perdure.TableSpec{
			Name: "model", Rows: typedRows, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
		})
		var got, one [typedRows]float32
		for i := range one {
			one[i] = 1
		}
		return func(ctx context.Context, clock perdure.Clock) error {
			if _, err := os.Stat("hurry"); err != nil {
				select {
				case <-time.After(30 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			if err := table.GetRun(ctx, 0, got[:]); err != nil {
				return err
			}
			if want := float32(int(clock) * c.Job().Slots); slices.ContainsFunc(got[:], func(x float32) bool {
				return x != want
			}) {
				return fmt.Errorf("the table is %v at clock %d; want %v", got, clock, want)
			}
			return table.IncRun(0, one[:])
		}, err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		return exitError
	}
	return 0
}

// machines are the machines of the pages: 10.0.0.5, 10.0.0.6 and 10.0.0.7.
type machines struct {
	*testing.T
	lan     *testcluster.LAN
	work    string
	started []*typed
}

// seat is one machine's terminal.
type seat struct {
	all   *machines
	index int
	addr  string
	dir   string   // the working directory of its commands
	env   []string // with exported variables
}

// typed is a command line that runs on a machine.
type typed struct {
	*process
	on   *seat
	line string
}

// newMachines starts the machines.
func newMachines(t *testing.T) (all *machines, five, six, seven *seat) {
	t.Helper()
	l, err := testcluster.NewLANAt(netip.MustParseAddr("10.0.0.5"), 3, 1)
	if errors.Is(err, testcluster.ErrNoLAN) {
		t.Skip(err)
	}
	must(t, err)
	all = &machines{T: t, lan: l, work: t.TempDir()}
	t.Cleanup(func() {
		for _, p := range all.started {
			p.dies()
		}
		must(t, l.Close())
	})
	exe, err := os.Executable()
	must(t, err)
	bin := filepath.Join(all.work, "bin")
	must(t, os.Mkdir(bin, 0o777))
	must(t, os.Symlink(exe, filepath.Join(bin, "perdure")))
	for name, script := range map[string]string{
		"etcd": `exec "$ETCD" "$@"`,
		"ssh":  `cd "$LAN/$1" && shift && exec "$@"`,
		"scp":  `to="${@: -1}"; exec cp "${@:1:$#-1}" "$LAN/${to%%:*}/${to#*:}"`,
	} {
		must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/bash\n"+script+"\n"), 0o777))
	}
	hosts := filepath.Join(all.work, "hosts")
	must(t, os.WriteFile(hosts, []byte("127.0.0.1 localhost\n10.0.0.5 training.example.org\n"+
		"10.0.0.6 training-2.example.org\n"), 0o666))
	var list []*seat
	for i := range 3 {
		m := &seat{all: all, index: i, addr: l.Host(i).Addr().String()}
		m.dir = filepath.Join(all.work, m.addr)
		must(t, os.Mkdir(m.dir, 0o700))
		m.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LAN="+all.work, "ETCD="+*apartEtcd)
		m.write("train", "#!/bin/sh\nexec env "+asProgram+"="+typedProgram+" perdure\n", 0o755)
		must(t, l.Host(i).Do(func() error { return beMachine("machine-"+m.addr[7:], hosts) }))
		list = append(list, m)
	}
	return all, list[0], list[1], list[2]
}

// beMachine gives the host of the calling thread a name and a hosts file.
func beMachine(name, hosts string) error {
	if err := unix.Unshare(unix.CLONE_NEWUTS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	return errors.Join(unix.Sethostname([]byte(name)), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, ""))
}

// exports runs a line that begins with export. It applies to all later commands of this machine.
func (m *seat) exports(line string) {
	m.all.Helper()
	is, ok := strings.CutPrefix(line, "export ")
	if !ok {
		m.all.Fatalf("%s is not an export", line)
	}
	m.env = append(m.env, strings.ReplaceAll(is, "'", ""))
}

// fetches copies files of another machine to the same paths on this one.
func (m *seat) fetches(from *seat, paths ...string) {
	m.all.Helper()
	for _, path := range paths {
		must(m.all, os.MkdirAll(filepath.Join(m.dir, filepath.Dir(path)), 0o700))
		copies := exec.Command("cp", "-rpT", filepath.Join(from.dir, path), filepath.Join(m.dir, path))
		out, err := copies.CombinedOutput()
		if err != nil {
			m.all.Fatalf("%v: %s", err, out)
		}
	}
}

// isGone simulates a power failure: every process of the machine dies, and its cable is pulled.
func (m *seat) isGone() {
	m.all.lan.Disconnect(m.index)
	for _, p := range m.all.started {
		if p.on == m {
			p.dies()
		}
	}
}

// isBack restores power and network.
func (m *seat) isBack() { m.all.lan.Reconnect(m.index) }

// write writes a file on the machine.
func (m *seat) write(name, text string, mode os.FileMode) {
	m.all.Helper()
	must(m.all, os.MkdirAll(filepath.Join(m.dir, filepath.Dir(name)), 0o700))
	must(m.all, os.WriteFile(filepath.Join(m.dir, name), []byte(text), mode))
}

// types starts a command line and does not wait for its end.
func (m *seat) types(line string) *typed {
	m.all.Helper()
	p := command(m.all)
	ctx, cancel := context.WithTimeout(m.all.Context(), patience)
	m.all.Cleanup(cancel)
	p.Cmd = exec.CommandContext(ctx, "sh", "-c", line)
	if !strings.ContainsAny(line, ";&|") && !strings.HasPrefix(line, "export ") {
		p.Cmd.Args[2] = "exec env " + line // signals go to the command, not to the shell
	}
	p.Dir, p.Env, p.SysProcAttr = m.dir, m.env, &syscall.SysProcAttr{Setpgid: true}
	p.Stdout, p.Stderr = p.stdout, p.stderr
	p.startBy(m.all.lan.Host(m.index).Start)
	t := &typed{p, m, line}
	m.all.started = append(m.all.started, t)
	return t
}

// again runs the same line again.
func (p *typed) again() *typed { return p.on.types(p.line) }

// dies kills the command and every process that it started.
func (p *typed) dies() {
	select {
	case <-p.ended:
	default:
		kill(p.process)
	}
}

// ends waits until the command exits successfully and returns its output.
func (p *typed) ends() string {
	p.on.all.Helper()
	code, out, errs := p.Wait()
	if code != 0 {
		p.on.all.Fatalf("on %s, %s ended with code %d: %s%s\n%s", p.on.addr, p.line, code, out, errs, p.on.all.said())
	}
	return out + errs
}

// does runs lines one after another and returns the last one's output.
func (m *seat) does(lines ...string) (out string) {
	m.all.Helper()
	for _, line := range lines {
		out = m.types(line).ends()
	}
	return out
}

// shows repeats a line until it succeeds and its output matches.
func (m *seat) shows(line, pattern string) (match []string) {
	m.all.Helper()
	var out, errs string
	await(m.all, func() bool {
		_, out, errs = m.types(line).Wait()
		match = regexp.MustCompile(pattern).FindStringSubmatch(out)
		return match != nil
	}, func() string {
		return fmt.Sprintf("on %s, the output of %s never matches %s: %s%s\n%s", m.addr, line, pattern, out, errs,
			m.all.said())
	})
	return match
}

// said returns the output of all commands, for failure messages.
func (a *machines) said() string {
	text := ""
	for _, p := range a.started {
		if out := p.stdout.String() + p.stderr.String(); len(out) > 0 && !strings.Contains(p.line, "status") {
			text += fmt.Sprintf("-- %s$ %s\n%s\n", p.on.addr, p.line, out[max(0, len(out)-1000):])
		}
	}
	for _, dir := range []string{"10.0.0.5", "10.0.0.6", "10.0.0.7"} {
		text += logs(filepath.Join(a.work, dir, "perdure-host"))
	}
	return text
}

// guide is a page of the guide.
type guide struct {
	*testing.T
	name   string
	blocks map[string][]docBlock // by heading
}

// openGuide reads a page.
func openGuide(t *testing.T, name string) *guide {
	t.Helper()
	blocks, text := readPage(t, filepath.Join(sources, "docs", "guide", name))
	g := &guide{t, name, map[string][]docBlock{}}
	for _, b := range blocks {
		line := b.line
		for !strings.HasPrefix(text[line], "#") {
			line--
		}
		heading := strings.TrimLeft(text[line], "# ")
		g.blocks[heading] = append(g.blocks[heading], b)
	}
	return g
}

// block returns the n-th block below a heading.
func (g *guide) block(heading string, n int) docBlock {
	g.Helper()
	if len(g.blocks[heading]) <= n {
		g.Fatalf("%s has fewer than %d blocks below %q; adapt this test to the page", g.name, n+1, heading)
	}
	return g.blocks[heading][n]
}

// lines returns the commands in a block. It fails if their number changes, because this test must decide on which
// machine each one runs.
func (g *guide) lines(heading string, n, want int) (list []string) {
	g.Helper()
	b := g.block(heading, n)
	for _, c := range b.commands() {
		list = append(list, c.text)
	}
	if len(list) != want {
		g.Fatalf("%s:%d has the commands %q; this test expects %d", g.name, b.line, list, want)
	}
	return list
}

// file returns a block that contains a file or a part of one.
func (g *guide) file(heading string, n int) string {
	g.Helper()
	return strings.Join(g.block(heading, n).lines, "\n") + "\n"
}
