// Package fanout serves what several clusters keep together: a list or a watch
// is merged of theirs, an object is asked of the one that has it, a new one is
// made where it belongs. It keeps law 7: a part that is missing is told of, and
// nothing is asked of, or made at, a cluster that it may not belong to.
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

// A Server serves what the roster's table gives to several clusters. Fields
// without a remark are required.
type Server struct {
	// Stopping, when it is closed, ends merged watches in good order.
	Stopping <-chan struct{}
	Log      *slog.Logger
	Now      func() time.Time
	Metrics  *observe.Metrics

	view  atomic.Pointer[view]
	locks locks
	turn  atomic.Uint64 // counts what was made

	buffers wire.Buffers // of watches

	mu       sync.Mutex
	rings    rings
	released uint64          // how often one was let go
	plain    map[string]bool // resources that some member does not serve in protobuf
}

// A Visit is a request on its way to several clusters.
type Visit struct {
	// Out is the request as a cluster would get it, without a credential. Its
	// context ends when the client is gone.
	Out      *http.Request
	Request  *apiproxy.Request
	Decision *apiproxy.Decision
	*view
	call   serving.Calling  // is told of each question to a cluster, but for those of our own
	body   []byte           // when it was looked into
	object *apiproxy.Object // in it
}

// clusterHeader tells which cluster an answer came from, which is none.
const (
	clusterHeader = "Mca-Cluster"
	merged        = "merged"
)

// Bounds of what is read of a member's answer that is no object.
const maxStatus = 1 << 20

// ask sends one question to one cluster. What is no 200 is a *wire.Status.
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

// statusOf reads what a cluster says instead of what it was asked for.
func statusOf(answer *upstream.Answer) *wire.Status {
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxStatus))
	if err != nil {
		body = nil
	}
	form, _ := wire.ParseForm(answer.Header.Get("Content-Type"))
	return wire.ParseStatus(body, form.Proto, answer.StatusCode)
}

// tell answers with a Status in the form that the client prefers.
func (v *Visit) tell(w http.ResponseWriter, s *wire.Status) {
	form := v.preferred()
	setHead(w, form.MediaType(false))
	if s.RetryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(s.RetryAfter))
	}
	w.WriteHeader(s.Code)
	w.Write(s.Append(nil, form.Proto)) // who is gone needs no answer
}

// preferred is the form that the client likes best; JSON if it takes none.
func (v *Visit) preferred() wire.Form {
	if forms := formsOf(v.Out.Header["Accept"]); len(forms) > 0 {
		return forms[0].Form
	}
	return wire.Form{}
}

// setHead fills in the header of an answer that is no one cluster's.
func setHead(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache, private")
	h.Set(clusterHeader, merged)
}

// fail answers what went wrong before anything was answered. Of a client that is
// gone, and of what cannot be told, it returns the error.
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
