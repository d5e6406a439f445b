// Package fanout serves requests that concern several clusters. It merges lists and watches, sends a request
// for an object to the cluster that has it, and creates a new object in the right cluster. It keeps law 7: a
// response reports missing parts, and no request goes to a cluster where the object may not belong.
package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// Server serves the requests that the routing table sends to several clusters. Fields without a remark are
// required.
type Server struct {
	// Stopping ends merged watches cleanly when it is closed.
	Stopping <-chan struct{}
	Log      *slog.Logger
	Now      func() time.Time
	Metrics  *observe.Metrics

	view  atomic.Pointer[view]
	locks locks
	turn  atomic.Uint64 // counts the objects that were created

	buffers wire.Buffers // of watches

	mu       sync.Mutex
	rings    rings
	released uint64          // counts the releases of rings
	plain    map[string]bool // resources that some member does not serve in protobuf
}

// Visit is a request that may go to several clusters.
type Visit struct {
	// Out is the request as a cluster receives it, without a credential. Its context ends when the client
	// disconnects.
	Out      *http.Request
	Request  *apiproxy.Request
	Decision *apiproxy.Decision
	*view
	call   serving.Calling  // observes each request to a cluster, except the adapter's own
	body   []byte           // set once the body has been read
	object *apiproxy.Object // the object in body
}

// clusterHeader names the cluster that a response comes from, or merged.
const (
	clusterHeader = "Mca-Cluster"
	merged        = "merged"
)

// maxStatus limits how many bytes of an error response are read.
const maxStatus = 1 << 20

// ask sends one request to one cluster. A response other than 200 becomes a *wire.Status error.
func (v *Visit) ask(ctx context.Context, cluster string, path string, query url.Values, header http.Header, read bool) (*upstream.Answer, error) {
	c := v.Cluster(cluster)
	if c == nil {
		return nil, fmt.Errorf("no cluster %s", cluster)
	}
	r, err := upstream.NewGet(ctx, path, query, header)
	if err != nil {
		return nil, err
	}
	answer, err := v.call.Do(c, upstream.Ask{Request: r, Read: read})
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer, nil
	}
	defer answer.Close()
	return nil, statusOf(answer)
}

// statusOf reads the Status of an error response.
func statusOf(answer *upstream.Answer) *wire.Status {
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxStatus))
	if err != nil {
		body = nil
	}
	form, _ := wire.ParseForm(answer.Header.Get("Content-Type"))
	return wire.ParseStatus(body, form.Proto, answer.StatusCode)
}

// tell writes a Status in the encoding that the client prefers.
func (v *Visit) tell(w http.ResponseWriter, s *wire.Status) {
	form := v.preferred()
	setHead(w, form.MediaType(false))
	if s.RetryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(s.RetryAfter))
	}
	w.WriteHeader(s.Code)
	w.Write(s.Append(nil, form.Proto)) // a client that disconnected needs no response
}

// preferred returns the encoding that the client prefers, or JSON if it accepts none.
func (v *Visit) preferred() wire.Form {
	if forms := formsOf(v.Out.Header["Accept"]); len(forms) > 0 {
		return forms[0].Form
	}
	return wire.Form{}
}

// setHead sets the headers of a response that does not come from a single cluster.
func setHead(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache, private")
	h.Set(clusterHeader, merged)
}

// fail writes the response for an error, if nothing has been written yet. It returns the error if it is not a
// Status. It aborts the request if the client has disconnected.
func (v *Visit) fail(w http.ResponseWriter, err error) error {
	if s, ok := errors.AsType[*wire.Status](err); ok {
		v.tell(w, s)
		return nil
	}
	if errors.Is(v.Out.Context().Err(), context.Canceled) {
		panic(http.ErrAbortHandler)
	}
	return err
}
