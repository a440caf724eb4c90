package httpdebug_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/proc/httpdebug"
)

// output collects the lines of a log. Timers write to it while the test reads.
type output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}

// TestSparing checks that the first line of a kind is written immediately and then one per second, and that all lines
// are counted.
func TestSparing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := httpdebug.RateLimited(httpdebug.NewLog(&out, httpdebug.Text))
		const each, seconds = 5000, 3
		for range seconds {
			for i := range each {
				log.Warn("refused", "peer", fmt.Sprintf("10.0.0.1:%d", i))
				if i == 0 && out.String() == "" {
					t.Fatal("the first line is not written immediately")
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		lines := strings.Count(out.String(), "\n")
		if lines > seconds+1 || counted(t, out.String()) != each*seconds {
			t.Errorf("counted %d of %d lines: %s", counted(t, out.String()), each*seconds, &out)
		}
		if !strings.Contains(out.String(), "peer=10.0.0.1:4999 more=4998") {
			t.Errorf("the latest line is missing: %s", &out)
		}
		out.Reset()
		if log.Warn("refused", "peer", "10.0.0.2:1"); !strings.Contains(out.String(), "10.0.0.2:1") {
			t.Errorf("after a quiet minute: logged %q", &out)
		}
	})
}

// counted returns how many lines a log represents, including skipped ones.
func counted(t *testing.T, log string) (n int) {
	t.Helper()
	n = strings.Count(log, "\n")
	for _, m := range regexp.MustCompile(`more=(\d+)`).FindAllStringSubmatch(log, -1) {
		more, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		n += more
	}
	return n
}

// TestSparingKinds checks that other kinds of lines are still written, and that the number of kinds is limited.
func TestSparingKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := httpdebug.RateLimited(httpdebug.NewLog(&out, httpdebug.Text))
		for range 100 {
			log.Warn("refused", "who", "unknown", "call", "Stop")
		}
		log.Warn("refused", "who", "viewer/eve", "call", "Stop")
		log.With("slot", 1).Warn("refused", "who", "unknown", "call", "Stop")
		log.Info("refused", "who", "unknown", "call", "Stop")
		log.Warn("another", "who", "unknown", "call", "Stop")
		if n := strings.Count(out.String(), "\n"); n != 5 {
			t.Errorf("%d lines for 5 kinds: %s", n, &out)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		out.Reset()
		for i := range 10000 {
			log.Warn("refused", "index", i)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n > 300 || counted(t, out.String()) != 10000 {
			t.Errorf("%d lines, representing %d, for 10000 kinds", n, counted(t, out.String()))
		}
	})
}

// TestErrorLog checks that the connection errors of an HTTP server are one kind.
func TestErrorLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := httpdebug.ErrorLog(httpdebug.NewLog(&out, httpdebug.Text))
		for i := range 1000 {
			log.Printf("http: TLS handshake error from 10.0.0.1:%d: EOF", i)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n != 2 || counted(t, out.String()) != 1000 {
			t.Errorf("%d lines, representing %d: %s", n, counted(t, out.String()), &out)
		}
	})
}
