package tsapi

import (
	"net/http"
	"slices"
	"time"
)

// Fault changes responses of the API. The zero value changes nothing. Its fields can be combined.
type Fault struct {
	Route string // the pattern as in Request.Route; empty: every route
	Skip  int    // number of requests that pass first
	Times int    // then the number of requests with the fault; 0: all

	Delay time.Duration // before anything else
	Hang  bool          // no response until the client gives up

	// Status, with Body or an error in the API's form, replaces the response. The request then has no effect, unless
	// Acts is set: then only the response is lost.
	Status int
	Body   string
	HTML   bool // the response is a middlebox's error page, with Status or 502
	Acts   bool

	Header   http.Header // set on the response: Retry-After, a wrong Etag
	Truncate bool        // send half of the response, then close the connection
}

// Fault adds a fault and returns a function that removes it. The first fault that matches a request applies.
func (a *API) Fault(f Fault) (remove func()) {
	own := &f
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = append(a.faults, own)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.faults = slices.DeleteFunc(a.faults, func(g *Fault) bool { return g == own })
	}
}

// fault returns a copy of the fault for this request, and counts it.
func (a *API) fault(pattern string) *Fault {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, f := range a.faults {
		if f.Route != "" && f.Route != pattern {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		hit := *f
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				a.faults = slices.Delete(a.faults, i, i+1)
			}
		}
		return &hit
	}
	return nil
}

// before delays or hangs. It returns false if the client is gone.
func (f *Fault) before(r *http.Request, closing <-chan struct{}) bool {
	if f == nil {
		return true
	}
	var wake <-chan time.Time
	switch {
	case f.Hang:
	case f.Delay > 0:
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		wake = t.C
	default:
		return true
	}
	select {
	case <-wake:
		return true
	case <-r.Context().Done():
	case <-closing:
	}
	return false
}

// lets reports whether the request takes effect.
func (f *Fault) lets() bool { return f == nil || f.Acts || f.Status == 0 && !f.HTML }

func (f *Fault) after(w *answer) {
	if f == nil {
		return
	}
	if f.HTML {
		w.body.Reset()
		w.status = http.StatusBadGateway
		w.header = http.Header{"Content-Type": {"text/html"}}
		w.body.WriteString("<html><body><h1>502 Bad Gateway</h1></body></html>\n")
	}
	if f.Status != 0 {
		w.status = f.Status
		if !f.HTML {
			w.body.Reset()
			w.header = http.Header{}
			if f.Body != "" {
				w.header.Set("Content-Type", "application/json")
				w.body.WriteString(f.Body)
			} else {
				writeJSON(w, f.Status, &apiError{Message: http.StatusText(f.Status)})
			}
		}
	}
	for name, values := range f.Header {
		w.header[http.CanonicalHeaderKey(name)] = values
	}
}
