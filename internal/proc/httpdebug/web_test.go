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

// TestConnLimit checks that the oldest connections are closed when a client opens too many, and that a later request is
// still answered.
func TestConnLimit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewHTTPServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	go func() { _ = s.Serve(l) }() // returns at the end of the test
	defer s.Close()
	dial := func(says string) net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, says) // the connection may be closed already
		return c
	}
	var all []net.Conn
	for range 3 * MaxConnections {
		all = append(all, dial("GET / HTTP/1.1\r\nHost: "))
	}
	answer, err := bufio.NewReader(dial("GET / HTTP/1.0\r\n\r\n")).ReadString('\n')
	if err != nil || !strings.Contains(answer, "200") {
		t.Errorf("later request: answer %q, error %v", answer, err)
	}
	for i, c := range all[:2*MaxConnections] {
		_, err := c.Read(make([]byte, 1))
		if timeout := net.Error(nil); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			t.Fatalf("connection %d, older than %d others, is still open: %v", i, len(all)-i, err)
		}
	}
}

// TestTimeouts checks that every phase of a request has a time limit.
func TestTimeouts(t *testing.T) {
	s := NewHTTPServer(nil)
	for what, d := range map[string]time.Duration{
		"a header": s.ReadHeaderTimeout, "a request": s.ReadTimeout, "an answer": s.WriteTimeout,
		"the next request": s.IdleTimeout,
	} {
		if d <= 0 || d > time.Minute {
			t.Errorf("the limit of %s is %v", what, d)
		}
	}
	if s.MaxHeaderBytes != MaxHeaderBytes {
		t.Errorf("the header limit is %d bytes", s.MaxHeaderBytes)
	}
}
