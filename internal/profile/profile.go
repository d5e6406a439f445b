// Package profile serves the runtime's profiles of a process. It keeps law 1: it
// serves nowhere by itself, only where a main was told to by a flag.
package profile

import (
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"
)

// Path is the pattern that Serve is to be registered under.
const Path = "GET /debug/pprof/{profile}"

// longest bounds how long one profile of the processor takes.
const longest = 2 * time.Minute

// Serve serves the runtime's profiles at the paths of net/http/pprof, whose
// import would put its own handlers into the process for everybody.
func Serve(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("profile")
	q := r.URL.Query()
	if name != "profile" {
		p := pprof.Lookup(name)
		if p == nil {
			http.Error(w, "there is no such profile", http.StatusNotFound)
			return
		}
		debug, _ := strconv.Atoi(q.Get("debug")) // what is no number is 0: the format of go tool pprof
		w.Header().Set("Content-Type", "application/octet-stream")
		if debug > 0 {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		}
		p.WriteTo(w, debug) // who does not read it does not want it
		return
	}
	seconds, err := strconv.Atoi(q.Get("seconds"))
	if err != nil || seconds <= 0 {
		seconds = 30
	}
	took := min(time.Duration(seconds)*time.Second, longest)
	// The port's own limit is for answers that are there at once.
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(took + 10*time.Second)); err != nil {
		http.Error(w, "the time for an answer cannot be extended", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := pprof.StartCPUProfile(w); err != nil {
		http.Error(w, "another profile is being taken", http.StatusConflict)
		return
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(took):
	case <-r.Context().Done():
	}
}
