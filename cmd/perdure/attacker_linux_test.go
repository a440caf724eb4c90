package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// attackerProgram is the name of a hostile process on a neighbouring host. Its arguments are the attack, the addresses
// of the coordinator, a server and the control API, and a directory. It exits with 0 if every attack was rejected.
const attackerProgram = "attacker"

// attacker holds what a process on the same network can know.
type attacker struct {
	coordinator, server, api string
	more                     string
	mu                       sync.Mutex // guards found, held
	found                    []string
	held                     []io.Closer
}

func runAttacker(args []string) int {
	a := &attacker{coordinator: args[1], server: args[2], api: args[3], more: args[4]}
	switch args[0] {
	case "relay":
		a.relay()
	case "knock":
		a.knock(2000)
		a.scan()
	case "take":
		a.take()
	case "pose":
		a.pose()
	}
	for _, c := range a.held {
		_ = c.Close()
	}
	for _, f := range a.found {
		fmt.Fprintln(os.Stderr, "breach:", f)
	}
	return min(len(a.found), 1)
}

// breach records an attack that succeeded.
func (a *attacker) breach(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.found = append(a.found, fmt.Sprintf(format, args...))
}

// hold keeps a connection open until the attack is over.
func (a *attacker) hold(c io.Closer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = append(a.held, c)
}

// relay forwards connections from this host's port 7000 to the coordinator and records what callers send, like a man in
// the middle.
func (a *attacker) relay() {
	l, err := net.Listen("tcp", ":7000")
	if err != nil {
		a.breach("%v", err)
		return
	}
	fmt.Println("listening")
	for i := 0; ; i++ {
		near, err := l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", a.coordinator)
		if err != nil {
			near.Close()
			continue
		}
		file, err := os.Create(filepath.Join(a.more, strconv.Itoa(i)))
		if err != nil {
			a.breach("%v", err)
			return
		}
		go func() {
			_, _ = io.Copy(io.MultiWriter(far, file), near)
			far.Close()
		}()
		go func() {
			_, _ = io.Copy(near, far)
			near.Close()
		}()
	}
}

// knock opens each connections to every address and sends what a client without keys can send.
func (a *attacker) knock(each int) {
	recorded := a.recorded()
	if len(recorded) == 0 {
		a.breach("relay recorded nothing to replay")
		return
	}
	var all sync.WaitGroup
	at := make(chan int)
	for range 64 {
		all.Go(func() {
			for i := range at {
				for _, addr := range []string{a.coordinator, a.server, a.api} {
					c, err := net.DialTimeout("tcp", addr, 10*time.Second)
					if err != nil {
						a.breach("%s no longer accepts connections: %v", addr, err)
						continue
					}
					a.hold(c)
					if said := rattle(c, i, recorded[i%len(recorded)], 100*time.Millisecond); tellsOfJob(said) {
						a.breach("%s discloses to a client without keys: %q", addr, said)
					}
				}
			}
		})
	}
	for i := range each {
		at <- i
	}
	close(at)
	all.Wait()
}

// recorded returns relay's recordings of connections that sent more than a greeting.
func (a *attacker) recorded() (all [][]byte) {
	files, _ := filepath.Glob(filepath.Join(a.more, "*")) // the pattern is right
	for _, name := range files {
		if said, err := os.ReadFile(name); err == nil && len(said) > 1000 {
			all = append(all, said)
		}
	}
	return all
}

// scan connects to every low port and counts those that are open.
func (a *attacker) scan() {
	open := 0
	for _, addr := range []string{a.coordinator, a.server} {
		host, _, _ := net.SplitHostPort(addr)
		for port := 1; port < 8000; port++ {
			if c, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", host, port), time.Second); err == nil {
				open++
				a.hold(c)
			}
		}
	}
	fmt.Println("open ports:", open)
}

// ring opens the keys in the directory that the arguments name.
func (a *attacker) ring() (*keys.Ring, perdure.Secret) {
	ring, err := keys.Open(a.more)
	if err != nil {
		a.breach("%v", err)
		return nil, ""
	}
	secret, err := keys.ReadSecret(ring.SecretFile())
	if err != nil {
		a.breach("%v", err)
	}
	return ring, secret
}

// greets connects, introduces itself with h, and returns the answer.
func (a *attacker) greets(ring *keys.Ring, addr string, h wire.Hello) (c transport.Conn, f wire.Frame, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if c, err = (transport.TCP{Keys: ring}).Dial(ctx, addr); err != nil {
		return nil, f, err
	}
	a.hold(c)
	late := time.AfterFunc(5*time.Second, func() { c.Close() })
	defer late.Stop()
	if err = c.Send(wire.Control(wire.KindHello, h)); err == nil {
		for err = c.Recv(&f); err == nil && f.Kind == wire.KindEcho; {
			err = c.Recv(&f)
		}
	}
	return c, f, err
}

// ends waits until a connection closes and returns the reason that the peer gave for the rejection.
func ends(c transport.Conn) (reason string, err error) {
	late := time.AfterFunc(5*time.Second, func() { c.Close() })
	var f wire.Frame
	for err == nil {
		if err = c.Recv(&f); err == nil && f.Kind == wire.KindRefuse {
			var r wire.Refusal
			if wire.ParseControl(&f, &r) == nil {
				reason = r.Reason
			}
		}
	}
	if !late.Stop() {
		return reason, errors.New("the peer does not close the connection")
	}
	return reason, nil
}

// take claims slot 0 of a job without workers, as any holder of a worker's keys may, and then sends invalid messages.
func (a *attacker) take() {
	ring, secret := a.ring()
	liar := wire.Hello{
		Role: wire.RoleWorker, Index: 0, Process: "liar", Nonce: "drawn", Secret: secret, PID: os.Getpid(),
	}
	var w wire.Welcome
	for what, lie := range testcluster.ForgedToCoordinator() {
		c, f, err := a.greets(ring, a.coordinator, liar)
		if err != nil || f.Kind != wire.KindWelcome {
			a.breach("before %s: slot 0 is not assigned: kind %d %s %v", what, f.Kind, f.Payload, err)
			continue
		}
		if err := errors.Join(wire.ParseControl(&f, &w), c.Send(lie)); err != nil {
			a.breach("%s: %v", what, err)
		}
		if reason, err := ends(c); err != nil || reason == "" || strings.Contains(reason, "\n") {
			a.breach("%s is answered with %q, %v", what, reason, err)
		}
	}
	toServer := liar // with the ticket that proves that it has the slot
	toServer.Job, toServer.Incarnation, toServer.Ticket = w.Job.ID, w.Incarnation, w.Ticket
	for what, lie := range testcluster.ForgedToServer() {
		c, f, err := a.greets(ring, a.server, toServer)
		if err != nil || f.Kind != wire.KindWelcome {
			a.breach("before %s: the server rejects slot 0: kind %d %s %v", what, f.Kind, f.Payload, err)
			continue
		}
		lie.Incarnation = w.Incarnation
		if err := c.Send(lie); err != nil {
			a.breach("%s: %v", what, err)
		}
		if _, err := ends(c); err != nil {
			a.breach("%s: %v", what, err)
		}
	}
	if c, _, err := a.greets(ring, a.coordinator, liar); err == nil { // it leaves, so that the slot is free immediately
		_ = c.Send(wire.Control(wire.KindExited, wire.Exited{Role: wire.RoleWorker, PID: liar.PID, How: "it left"}))
		c.Close()
	}
}

// pose attempts everything that a worker's keys must not permit in a job whose slots are taken.
func (a *attacker) pose() {
	ring, secret := a.ring()
	a.poseAs(ring, secret)
	a.garble(ring, secret)
	a.command(ring, secret)
	a.crowd(ring, secret, 500)
}

// poseAs claims to be other processes, and then sends invalid messages as an observer.
func (a *attacker) poseAs(ring *keys.Ring, secret perdure.Secret) {
	for _, addr := range []string{a.coordinator, a.server} {
		for _, h := range []wire.Hello{
			{Role: wire.RoleServer, Index: 0, Process: "liar"},
			{Role: wire.RoleServer, Index: 0, Process: "server:0"},
			{Role: wire.RoleSupervisor, Process: "parent"},
			{Role: "king"},
			{Role: wire.RoleWorker, Index: 0, Process: "liar"},
			{Role: wire.RoleWorker, Index: 1, Process: "liar", Incarnation: 1},
			{Role: wire.RoleWorker, Index: 1, Process: "liar", Incarnation: 1, Ticket: "guess"},
		} {
			h.Secret = secret
			c, f, err := a.greets(ring, addr, h)
			if err == nil && f.Kind != wire.KindRefuse {
				a.breach("%s admits %+v: kind %d", addr, h, f.Kind)
			}
			if c != nil {
				c.Close()
			}
		}
		for what, lie := range testcluster.ForgedToCoordinator() {
			c, f, err := a.greets(ring, addr, wire.Hello{
				Role: wire.RoleObserver, Index: int(perdure.NoSlot), Process: "liar", Secret: secret,
			})
			if err != nil || f.Kind != wire.KindWelcome {
				continue // a server requires the job's ID
			}
			if err := c.Send(lie); err != nil { // the job's final model shows whether it was accepted
				a.breach("%s: %v", what, err)
			}
			c.Close()
		}
	}
}

// garble sends random bytes after a valid greeting.
func (a *attacker) garble(ring *keys.Ring, secret perdure.Secret) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, addr := range []string{a.coordinator, a.server} {
		for range 50 {
			c, err := tls.Dial("tcp", addr, ring.Client(keys.Coordinator, keys.Server))
			if err != nil {
				a.breach("%s: %v", addr, err)
				continue
			}
			hello := wire.Control(wire.KindHello, wire.Hello{
				Role: wire.RoleObserver, Index: int(perdure.NoSlot), Process: "liar", Secret: secret,
			})
			text := wire.Append(nil, &hello)
			noise := bytes.Clone(text) // a frame header followed by random bytes
			for i := 4 + rng.IntN(len(noise)-4); i < len(noise); i++ {
				noise[i] = byte(rng.Uint32())
			}
			_, _ = c.Write(append(text, noise...)) // the peer may have closed it
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				a.breach("%s keeps a connection open after an invalid frame", addr)
			}
			c.Close()
		}
	}
}

// command makes control API calls that only an operator may make.
func (a *attacker) command(ring *keys.Ring, secret perdure.Secret) {
	c := control.NewClient(a.api, secret, ring)
	ctx := context.Background()
	for range 20 {
		_, drained := c.Drain(ctx, control.Drain{Target: "server:0"})
		_, scaled := c.Scale(ctx, control.Scale{Workers: 9})
		_, struck := c.Fault(ctx, "kill:server:0@0s")
		for what, err := range map[string]error{
			"stop": c.Stop(ctx), "drain": drained, "scale": scaled, "fault": struck,
		} {
			if err == nil || !strings.Contains(err.Error(), "only an operator") {
				a.breach("%s by a worker: %v", what, err)
			}
		}
	}
}

// crowd opens more connections than one peer may have, greets on each, and never reads.
func (a *attacker) crowd(ring *keys.Ring, secret perdure.Secret, n int) {
	kept := 0
	for range n {
		_, f, err := a.greets(ring, a.coordinator, wire.Hello{
			Role: wire.RoleObserver, Index: int(perdure.NoSlot), Process: "one peer", Secret: secret,
		})
		if err != nil || f.Kind != wire.KindWelcome && f.Kind != wire.KindRefuse {
			a.breach("the answer to an observer has kind %d: %v", f.Kind, err)
		}
		if f.Kind == wire.KindWelcome {
			kept++
		}
	}
	fmt.Printf("%d of %d connections of one peer were kept\n", kept, n)
	if kept == n {
		a.breach("one peer may have %d connections", n)
	}
}
