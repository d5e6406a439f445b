package apiproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Probe configures the health probe of a cluster. The zero value disables probing, with defaults of 3
// failures and 1 success.
type Probe struct {
	Path      string
	Interval  time.Duration // the time without any outcome after which a probe is sent
	Timeout   time.Duration
	Failures  int // consecutive ones that make it unhealthy; failed connections of requests also count
	Successes int // consecutive ones that make it healthy again
}

// inUseIntervals is the number of intervals for which a cluster counts as used after a request. Unused clusters are
// not probed: every pod has an adapter, and ten thousand idle ones would keep an API server busy.
const inUseIntervals = 10

// ProbeDue reports whether it is time to call [Upstream.RunProbe]. The cluster must be in use. In addition, there was
// no outcome for an interval, or the cluster is unhealthy and a trial is due.
func (c *Upstream) ProbeDue() bool {
	if c.Probe.Path == "" || c.Probe.Interval <= 0 {
		return false
	}
	h, now := &c.health, c.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.trying || h.lastUsed.IsZero() || now.Sub(h.lastUsed) > inUseIntervals*c.Probe.Interval:
		return false
	case h.state == StateUnhealthy:
		return !now.Before(h.nextTrial)
	}
	return now.Sub(h.lastOutcome) >= c.Probe.Interval
}

// RunProbe probes the cluster. No response, or a status of 500 or above, counts as a failure. A refusal such as
// 403 counts as a response.
func (c *Upstream) RunProbe(ctx context.Context) {
	h := &c.health
	h.mu.Lock()
	done, ok := h.trial(c.Now())
	h.mu.Unlock()
	if !ok {
		return
	}
	defer done()
	cred, err := c.credential()
	if err != nil {
		return // not a failure of the cluster; each request reports it
	}
	if c.identify(ctx, cred) != nil {
		return // compare has recorded the outcome
	}
	began := c.Now()
	code, _, err := c.fetch(ctx, cred, c.Probe.Path, "*/*", c.Probe.Timeout)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil && code < http.StatusInternalServerError:
		h.record(c.Now(), attemptSucceeded, nil)
	default:
		if err == nil {
			err = fmt.Errorf("it answered %d to GET %s", code, c.Probe.Path)
		}
		h.record(c.Now(), attemptUnreachable, err)
	}
	if c.OnProbe != nil {
		c.OnProbe(c.Now().Sub(began))
	}
}

// maxProbeResponse limits how many bytes of a response to the adapter's own requests are read.
const maxProbeResponse = 64 << 10

// fetch sends a GET request of the adapter itself.
func (c *Upstream) fetch(ctx context.Context, cred *credential, path, accept string, limit time.Duration) (code int, body []byte, _ error) {
	if limit <= 0 {
		limit = 5 * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer to GET %s in %v", path, limit))
	defer cancel()
	r := &http.Request{
		Method:     http.MethodGet,
		URL:        &url.URL{Path: path},
		Header:     http.Header{"Accept": {accept}, "User-Agent": {"mca"}},
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
	}
	response, _, err := c.send(UpstreamRequest{Request: r.WithContext(ctx)}, cred, c.pick(nil))
	if err == nil {
		defer response.Close()
		body, err = io.ReadAll(io.LimitReader(response.Body, maxProbeResponse))
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return 0, nil, err
	}
	return response.StatusCode, body, nil
}

// clusterIdentity caches whether the expected cluster answers at the address.
type clusterIdentity struct {
	mu     sync.Mutex
	known  bool
	outage int // known is valid until the number of outages changes

	failed time.Time // when the last check failed
	err    error     // why it failed
}

// identityRetry is how long a failed check is not repeated. Requests that waited for it get the same error.
const identityRetry = time.Second

const partialMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// identify checks that the expected cluster answers at the address, before the first request and after each
// outage. If the pod may not read the UID, it logs a warning and accepts the cluster.
func (c *Upstream) identify(ctx context.Context, cred *credential) error {
	if c.UID == "" {
		return nil
	}
	c.health.mu.Lock()
	outage := c.health.outages
	c.health.mu.Unlock()
	c.identity.mu.Lock()
	defer c.identity.mu.Unlock()
	if c.identity.known && c.identity.outage == outage {
		return nil
	}
	if i := &c.identity; i.err != nil && c.Now().Sub(i.failed) < identityRetry {
		return i.err
	}
	c.identity.err = c.compareUID(ctx, cred)
	c.identity.failed = c.Now()
	if c.identity.err != nil {
		return c.identity.err
	}
	c.identity.known, c.identity.outage = true, outage
	return nil
}

// compareUID reads the UID of the cluster and compares it.
func (c *Upstream) compareUID(ctx context.Context, cred *credential) error {
	code, body, err := c.fetch(ctx, cred, "/api/v1/namespaces/kube-system", partialMetadata, 0)
	var is struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return &UpstreamError{Reason: FailedTimeout, Err: context.Cause(ctx)}
	case err != nil:
		c.health.record(c.Now(), attemptUnreachable, err)
		return &UpstreamError{Reason: FailedConnect, Err: err}
	case code == http.StatusForbidden:
		c.Log.Warn("the identity of the cluster cannot be checked: this pod may not read its namespace kube-system", "cluster", c.Name)
	case code == http.StatusUnauthorized:
		return &UpstreamError{Reason: FailedCredential, Err: fmt.Errorf("cluster %s rejected its credential", c.Name)}
	case code != http.StatusOK || json.Unmarshal(body, &is) != nil || is.Metadata.UID == "":
		return &UpstreamError{Reason: FailedUnhealthy, Err: fmt.Errorf("its identity is unknown: it answered %d", code)}
	case is.Metadata.UID != c.UID:
		err := errors.New("another cluster answers: the uid of its namespace kube-system is not the uid in the configuration")
		c.health.recordIdentityMismatch(c.Now(), err)
		return &UpstreamError{Reason: FailedUnhealthy, Err: err}
	}
	return nil
}

// recordIdentityMismatch makes the cluster unhealthy at once.
func (h *health) recordIdentityMismatch(now time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastOutcome, h.lastErr, h.consecutiveSuccesses = now, err, 0
	h.setUnhealthy(now)
}
