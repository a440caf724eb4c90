package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/testcluster"
)

// says connects in a role, sends a frame, and returns why the connection was closed, or "" if it was not.
func (s *subject) says(role wire.Role, f wire.Frame) (reason string) {
	s.Helper()
	c := s.connect(func(h *wire.Hello) { h.Role = role })
	defer c.Close()
	if err := c.Send(f); err != nil {
		s.Fatal(err)
	}
	received := make(chan string, 1)
	go func() {
		var why string
		var f wire.Frame
		for c.Recv(&f) == nil {
			var r wire.Refusal
			if f.Kind == wire.KindRefuse && wire.ParseControl(&f, &r) == nil {
				why = r.Reason
			}
		}
		received <- why
	}()
	select {
	case reason = <-received:
		if reason == "" {
			reason = "without a reason"
		}
	case <-time.After(100 * time.Millisecond):
	}
	return reason
}

// TestRightsAtServer sends a server every kind of message in every role, about its shards and others.
// docs/design/security.md lists what each role may send. Any other message closes the connection with an explanation
// and changes nothing.
func TestRightsAtServer(t *testing.T) {
	rights, err := testcluster.ParseSenders("../../..")
	if err != nil {
		t.Fatal(err)
	}
	lives := map[string]func(*wire.Header){
		"a shard":                       func(*wire.Header) {},
		"another epoch of a shard":      func(h *wire.Header) { h.Epoch += 7 },
		"a shard that is not here":      func(h *wire.Header) { h.Shard = 5 },
		"no shard":                      func(h *wire.Header) { h.Shard = -1 },
		"a shard, as of another worker": func(h *wire.Header) { h.Slot = 1 },
	}
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory)
		for _, role := range []wire.Role{wire.RoleWorker, wire.RoleObserver, wire.RoleServer} {
			for n := range 256 {
				kind := wire.Kind(n)
				want := fmt.Sprintf("no %s may send a frame of kind %d to a server", role, kind)
				if slices.Contains(rights[kind].Server, role) {
					says := s.says(role, s.shardFrame(kind, nil, lives["another epoch of a shard"]))
					mayEnd := kind == wire.KindSnapshot // the sender would wait for an answer
					if strings.Contains(says, "may send a frame") || says != "" && !mayEnd {
						t.Errorf("a %s may not send kind %d (%s): %q", role, kind, rights[kind].Name, says)
					}
					continue
				}
				for about, change := range lives {
					if says := s.says(role, s.shardFrame(kind, nil, change)); says != want {
						t.Errorf("a %s that sends kind %d (%s) about %s received %q; want %q", role, kind,
							rights[kind].Name, about, says, want)
					}
				}
			}
			s.goesOn(fmt.Sprintf("all kinds of messages from a %s", role))
		}
		for _, role := range []wire.Role{wire.RoleSupervisor, wire.RoleCoordinator} {
			c, err := s.near.Dial(s.ctx, s.addr)
			if err != nil {
				t.Fatal(err)
			}
			f := hello(func(h *wire.Hello) { h.Role = role })
			if err := c.Send(f); err != nil {
				t.Fatal(err)
			}
			if err := c.Recv(&f); err != nil || f.Kind != wire.KindRefuse {
				t.Errorf("a %s received kind %d instead of a refusal, %v", role, f.Kind, err)
			}
			c.Close()
		}
	})
}
