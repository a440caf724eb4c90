package httpdebug

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestCrowd: of those who open more connections than anybody needs, and say next to nothing, the oldest go; who comes
// then is answered.
func TestCrowd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewHTTPServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	go func() { _ = s.Serve(l) }() // ends with the test
	defer s.Close()
	dial := func(says string) net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, says) // it may be closed already
		return c
	}
	var all []net.Conn
	for range 3 * MostConnections {
		all = append(all, dial("GET / HTTP/1.1\r\nHost: "))
	}
	answer, err := bufio.NewReader(dial("GET / HTTP/1.0\r\n\r\n")).ReadString('\n')
	if err != nil || !strings.Contains(answer, "200") {
		t.Errorf("who comes then is told %q, %v", answer, err)
	}
	for i, c := range all[:2*MostConnections] {
		_, err := c.Read(make([]byte, 1))
		if timeout := net.Error(nil); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			t.Fatalf("the %d-th, of which %d came later, is still there: %v", i, len(all)-i, err)
		}
	}
}

// TestPatience: nobody may take as long as he likes over anything.
func TestPatience(t *testing.T) {
	s := NewHTTPServer(nil)
	for what, d := range map[string]time.Duration{
		"a header": s.ReadHeaderTimeout, "a request": s.ReadTimeout, "an answer": s.WriteTimeout,
		"the next request": s.IdleTimeout,
	} {
		if d <= 0 || d > time.Minute {
			t.Errorf("%s may take %v", what, d)
		}
	}
	if s.MaxHeaderBytes != MostHeaderBytes {
		t.Errorf("a header may have %d bytes", s.MaxHeaderBytes)
	}
}
