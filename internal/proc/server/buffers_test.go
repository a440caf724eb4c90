package server

import "testing"

// TestBuffersForgetBursts checks that memory needed by a burst is released once it is unused, and that used memory
// stays.
func TestBuffersForgetBursts(t *testing.T) {
	var b frameBuffers
	use := func(n int) {
		var payloads [][]byte
		var answers []*answerFrame
		for range n {
			payloads, answers = append(payloads, b.Payload(1000)), append(answers, b.Answer(200))
		}
		for i := range n {
			b.Keep(payloads[i])
			answers[i].Release()
		}
	}
	check := func(when string, want int) {
		t.Helper()
		p, a := len(b.payloads[class(1000)].kept), len(b.answers[class(800)].kept)
		if p != want || a != want || b.bytes != want*2*1024 {
			t.Errorf("%s: %d payloads, %d answers, %d bytes are kept; want %d of each", when, p, a, b.bytes, want)
		}
	}
	use(10)
	b.Trim()
	check("after a burst", 10)
	use(3)
	b.Trim()
	check("after less", 3)
	use(3)
	b.Trim()
	check("after as much again", 3)
	b.Trim()
	check("after nothing", 0)
}

// TestOwn checks that only shared memory is copied.
func TestOwn(t *testing.T) {
	var b frameBuffers
	body := []byte{1, 2, 3}
	if got := b.CopyIfShared(body, false); &got[0] != &body[0] {
		t.Error("unshared memory was copied")
	}
	got := b.CopyIfShared(body, true)
	if body[0] = 9; got[0] != 1 || len(got) != 3 {
		t.Errorf("the copy changed to %v", got)
	}
	if b.CopyIfShared(nil, true) != nil {
		t.Error("nil was copied")
	}
	first := &got[0]
	if all := b.KeepAll([][]byte{got}); len(all) != 0 || &b.Payload(3)[0] != first {
		t.Error("kept memory was not reused")
	}
}
