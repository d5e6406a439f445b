// Package profile serves the Go runtime profiles of a process. It enforces law 1: it opens no
// listener. A main package registers it only if a flag says so.
package profile

import (
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"
)

// Path is the pattern to register Serve with.
const Path = "GET /debug/pprof/{profile}"

// longest is the maximum duration of one CPU profile.
const longest = 2 * time.Minute

// Serve serves the runtime profiles at the paths of net/http/pprof. It does not import that
// package, because the import would register its handlers on the default mux of the process.
func Serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("profile")
	q := r.URL.Query()
	if name != "profile" {
		p := pprof.Lookup(name)
		if p == nil {
			http.Error(w, "unknown profile", http.StatusNotFound)
			return
		}
		debug, _ := strconv.Atoi(q.Get("debug")) // an invalid number is 0: the format of go tool pprof
		w.Header().Set("Content-Type", "application/octet-stream")
		if debug > 0 {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		}
		p.WriteTo(w, debug) // an error means that the client left
		return
	}
	seconds, err := strconv.Atoi(q.Get("seconds"))
	if err != nil || seconds <= 0 {
		seconds = 30
	}
	took := min(time.Duration(seconds)*time.Second, longest)
	// The server's write timeout is for immediate responses.
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(took + 10*time.Second)); err != nil {
		http.Error(w, "cannot extend the time limit of the answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := pprof.StartCPUProfile(w); err != nil {
		http.Error(w, "another profile is in progress", http.StatusConflict)
		return
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(took):
	case <-r.Context().Done():
	}
}
