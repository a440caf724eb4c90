package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/keys"
)

// The page is served as it is written, without a build step.
//
//go:embed page
var pageFiles embed.FS

// actHeader is a header of each POST. A page of another origin cannot send it: browsers ask the server first, which
// does not allow it.
const actHeader = "X-Perdure"

// maxBody limits the body of a request, in bytes.
const maxBody = 8 << 10

// policy lets the page load only its own files and apply only its own style. What may embed the page is inserted.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' '%s'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors %s"

// loopbackPages are pages of this machine. Other machines cannot serve one, so a foreign page cannot place invisible
// buttons over those of the dashboard.
const loopbackPages = "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:*"

func (d *Dashboard) handler() http.Handler {
	page, err := fs.Sub(pageFiles, "page")
	if err != nil {
		panic(err) // the directory is embedded
	}
	index, style := inlineStyle()
	ancestors := "'none'"
	if d.cfg.Framed {
		ancestors = loopbackPages
	}
	csp := fmt.Sprintf(policy, style, ancestors)
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(index) // the client has disconnected
	})
	mux.HandleFunc("GET /session", d.getSession)
	mux.HandleFunc("POST /session", d.postSession)
	mux.HandleFunc("GET /stream", d.getStream)
	mux.HandleFunc("POST /act", d.postAct)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", csp)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if why := d.reject(r); why != "" {
			http.Error(w, why, http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// inlineStyle returns the page with its style sheet inside, and the style's source for the policy. The browser can then
// paint after one request.
func inlineStyle() (page []byte, source string) {
	const link = `<link rel="stylesheet" href="style.css">`
	index, err := pageFiles.ReadFile("page/index.html")
	style, err2 := pageFiles.ReadFile("page/style.css")
	if err = errors.Join(err, err2); err != nil || !bytes.Contains(index, []byte(link)) {
		panic(fmt.Sprintf("dashboard: the page has no style sheet: %v", err)) // the files are embedded
	}
	sum := sha256.Sum256(style)
	page = bytes.Replace(index, []byte(link), slices.Concat([]byte("<style>"), style, []byte("</style>")), 1)
	return page, "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// reject returns why a request may come from a page of another origin, or "". A foreign page can make a browser send
// requests here: from its own origin, or under its own host name after its address in DNS has changed.
func (d *Dashboard) reject(r *http.Request) string {
	if !d.isOwnHost(r.Host) {
		return "invalid Host header; use this machine's address to open the dashboard"
	}
	for _, origin := range r.Header.Values("Origin") {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host || u.Scheme != d.listener.scheme {
			return "the dashboard does not accept requests from pages of other origins"
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); r.Method != http.MethodGet && site != "" && site != "same-origin" {
		return "the dashboard does not accept requests from pages of other origins"
	}
	if r.Method == http.MethodPost && r.Header.Get(actHeader) == "" {
		return "the header " + actHeader + " is missing"
	}
	return ""
}

// isOwnHost reports whether a Host header can only mean this machine. An IP address cannot be rebound in DNS.
func (d *Dashboard) isOwnHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	if d.listener.scheme == "http" { // other machines cannot reach it
		return name == "localhost" || ip != nil && ip.IsLoopback()
	}
	return name == "localhost" || ip != nil || slices.ContainsFunc(d.listener.names, func(own string) bool {
		return strings.EqualFold(own, name) // browsers send a name in lower case
	})
}

// getSession answers whether the browser is admitted.
func (d *Dashboard) getSession(w http.ResponseWriter, r *http.Request) {
	if _, err := d.sessions.role(r); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// postSession exchanges a token for a cookie.
func (d *Dashboard) postSession(w http.ResponseWriter, r *http.Request) {
	var of struct {
		Token string `json:"token"`
	}
	if !readBody(w, r, &of) {
		return
	}
	c, err := d.sessions.exchange(of.Token)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	c.Secure = d.listener.scheme == "https"
	http.SetCookie(w, c)
	w.WriteHeader(http.StatusNoContent)
}

// postAct carries out an action.
func (d *Dashboard) postAct(w http.ResponseWriter, r *http.Request) {
	role, err := d.sessions.role(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if why := d.job.forRole(role).Refuses; why != "" {
		http.Error(w, why, http.StatusForbidden)
		return
	}
	var a Action
	if !readBody(w, r, &a) {
		return
	}
	accepted, err := d.cfg.Job.Act(r.Context(), a)
	switch {
	case errors.Is(err, perdure.ErrUsage):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"accepted": accepted}) // the client has disconnected
	}
}

// readBody decodes a request's body, or answers with an error and returns false.
func readBody(w http.ResponseWriter, r *http.Request, to any) bool {
	from := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	from.DisallowUnknownFields()
	if err := from.Decode(to); err != nil {
		http.Error(w, "invalid request: "+err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

// getStream sends the stream until the client disconnects, its rights end or the run ends.
func (d *Dashboard) getStream(w http.ResponseWriter, r *http.Request) {
	role, err := d.sessions.role(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	c := d.hub.join()
	if c == nil {
		http.Error(w, "too many browsers watch this job; close one", http.StatusServiceUnavailable)
		return
	}
	defer d.hub.leave(c)
	w.Header().Set("Content-Type", "text/event-stream")
	s := &stream{
		d: d, w: w, control: http.NewResponseController(w), role: role, client: c,
		admitted: func() bool {
			now, err := d.sessions.role(r)
			return err == nil && (now == role || now == keys.Operator)
		},
	}
	_ = s.run(r.Context(), r.Header.Get("Last-Event-ID")) // the client has disconnected, and may come back
}
