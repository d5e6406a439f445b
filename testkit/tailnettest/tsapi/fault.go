package tsapi

import (
	"net/http"
	"slices"
	"time"
)

// Fault spoils answers of the API. The zero value spoils nothing; what is set adds up.
type Fault struct {
	Route string // the pattern as in Request.Route; empty: every route
	Skip  int    // this many requests pass first
	Times int    // then this many are spoilt; 0: all

	Delay time.Duration // before anything else
	Hang  bool          // no answer until the client goes away

	// Status, with Body or an error in the API's form, replaces the answer. The
	// request has no effect then, unless Acts says that only the answer is lost.
	Status int
	Body   string
	HTML   bool // the answer is a middlebox's error page, with Status or 502
	Acts   bool

	Header   http.Header // set on the answer: Retry-After, a wrong Etag
	Truncate bool        // half of the answer, then the connection ends
}

// Fault adds a fault and returns what takes it away. The first that matches a request counts.
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

// fault returns a copy of the fault that hits this request, and counts it.
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

// before delays or hangs; false means that there is nobody to answer.
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
