// Package multicluster is the part of the adapter that knows several clusters. A [Table] routes each request, and a
// [Router] serves the requests that concern several clusters. It merges lists and watches, sends a request
// for an object to the cluster that has it, and creates a new object in the right cluster. It keeps law 7: a
// response reports missing parts, and no request goes to a cluster where the object may not belong. It refuses a request
// that it cannot read exactly as Kubernetes would.
package multicluster

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
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// Router serves the requests that the routing table sends to several clusters. Fields without a remark are
// required.
type Router struct {
	Log     *slog.Logger
	Now     func() time.Time
	Metrics *apiproxy.Metrics

	state   atomic.Pointer[routerState]
	locks   createLocks
	creates atomic.Uint64 // counts the objects that were created

	buffers codec.BufferPool // of watches

	mu       sync.Mutex
	jsonOnly map[string]bool // resources that some member does not serve in protobuf
}

// request is a request that may go to several clusters.
type request struct {
	*apiproxy.Exchange
	*routerState
	decision *Decision
	body     []byte         // set once the body has been read
	object   *requestObject // the object in body
	// rewritten reports that the body was rewritten for one cluster. No other cluster may receive it.
	rewritten bool
	warnings  []string // for the client, in addition to those of the decision
}

// clusterHeader names the cluster that a response comes from, or merged.
const (
	clusterHeader = "Mca-Cluster"
	mergedCluster = "merged"
)

// maxStatus limits how many bytes of an error response are read.
const maxStatus = 1 << 20

// get sends one request to one cluster. A response other than 200 becomes a *codec.Status error.
func (v *request) get(
	ctx context.Context,
	cluster string,
	path string,
	query url.Values,
	header http.Header,
	read bool,
) (*apiproxy.UpstreamResponse, error) {
	c := v.Upstream(cluster)
	if c == nil {
		return nil, fmt.Errorf("no cluster %s", cluster)
	}
	r, err := apiproxy.NewGetRequest(ctx, path, query, header)
	if err != nil {
		return nil, err
	}
	res, err := v.Do(c, apiproxy.UpstreamRequest{Request: r, ReadOnly: read})
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Close()
	return nil, readStatus(res)
}

// readStatus reads the Status of an error response.
func readStatus(res *apiproxy.UpstreamResponse) *codec.Status {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxStatus))
	if err != nil {
		body = nil
	}
	format, _ := codec.ParseFormat(res.Header.Get("Content-Type"))
	return codec.ParseStatus(body, format.Proto, res.StatusCode)
}

// writeStatus writes a Status in the encoding that the client prefers.
func (v *request) writeStatus(s *codec.Status) {
	format := v.preferredFormat()
	v.setMergedHeaders(format.MediaType(false))
	if s.RetryAfter > 0 {
		v.W.Header().Set("Retry-After", fmt.Sprint(s.RetryAfter))
	}
	v.W.WriteHeader(s.Code)
	v.W.Write(s.Append(nil, format.Proto)) // a client that disconnected needs no response
}

// preferredFormat returns the encoding that the client prefers, or JSON if it accepts none.
func (v *request) preferredFormat() codec.Format {
	if formats := parseAccept(v.Out.Header["Accept"]); len(formats) > 0 {
		return formats[0].Format
	}
	return codec.Format{}
}

// setMergedHeaders sets the headers of a response that does not come from a single cluster.
func (v *request) setMergedHeaders(contentType string) {
	h := v.W.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache, private")
	h.Set(clusterHeader, mergedCluster)
}

// writeError writes the response for an error, if nothing has been written yet. It returns the error if it is not a
// Status. It aborts the request if the client has disconnected.
func (v *request) writeError(err error) error {
	if s, ok := errors.AsType[*codec.Status](err); ok {
		v.writeStatus(s)
		return nil
	}
	if errors.Is(v.Out.Context().Err(), context.Canceled) {
		panic(http.ErrAbortHandler)
	}
	return err
}
