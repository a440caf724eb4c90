package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/rig"
)

// says has somebody come in a role and say something, and returns why his connection was ended, "" if it was not.
func (s *subject) says(role wire.Role, f wire.Frame) (reason string) {
	s.Helper()
	c := s.connect(func(h *wire.Hello) { h.Role = role })
	defer c.Close()
	if err := c.Send(f); err != nil {
		s.Fatal(err)
	}
	heard := make(chan string, 1)
	go func() {
		var why string
		var f wire.Frame
		for c.Recv(&f) == nil {
			var r wire.Refusal
			if f.Kind == wire.KindRefuse && wire.ParseControl(&f, &r) == nil {
				why = r.Reason
			}
		}
		heard <- why
	}()
	select {
	case reason = <-heard:
		if reason == "" {
			reason = "without a word"
		}
	case <-time.After(100 * time.Millisecond):
	}
	return reason
}

// TestRightsAtServer sends a server each kind of message there could be, in each role, about a shard that it has and
// about others. What a role may send is as docs/design/security.md has it; all else ends the connection with a line
// that says so, and changes nothing.
func TestRightsAtServer(t *testing.T) {
	rights, err := rig.Rights("../../..")
	if err != nil {
		t.Fatal(err)
	}
	lives := map[string]func(*wire.Header){
		"a shard":                       func(*wire.Header) {},
		"another life of a shard":       func(h *wire.Header) { h.Epoch += 7 },
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
					says := s.says(role, s.shardFrame(kind, nil, lives["another life of a shard"]))
					mayEnd := kind == wire.KindSnapshot // its sender would wait for an answer
					if strings.Contains(says, "may send a frame") || says != "" && !mayEnd {
						t.Errorf("a %s may not send kind %d (%s): %q", role, kind, rights[kind].Name, says)
					}
					continue
				}
				for about, change := range lives {
					if says := s.says(role, s.shardFrame(kind, nil, change)); says != want {
						t.Errorf("a %s sends kind %d (%s) about %s, and is told %q; want %q", role, kind,
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
				t.Errorf("a %s is greeted with kind %d, %v", role, f.Kind, err)
			}
			c.Close()
		}
	})
}
