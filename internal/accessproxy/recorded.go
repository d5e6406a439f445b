package accessproxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/policy"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/accessproxy/recording/frames"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// recordingEnd is how long the end of a recording may wait for its last acknowledgement.
const recordingEnd = 10 * time.Second

// levelOf returns how strictly a kind of stream is recorded.
func levelOf(r policy.Recording, kind apiproxy.StreamKind) policy.Level {
	switch kind {
	case apiproxy.StreamExec:
		return r.Exec
	case apiproxy.StreamAttach:
		return r.Attach
	case apiproxy.StreamPortForward:
		return r.PortForward
	}
	return policy.Off
}

// startRecording begins the recording of a stream before the API server receives its request. If the recording is
// required and cannot begin, the request is refused. Requests to a node's own API reach every container of the node past
// any recording, so they are refused where a rule requires one.
func (x *exchange) startRecording(ctx context.Context) error {
	p, kind := x.proxy, apiproxy.StreamKindOf(x.request)
	if x.request.Resource == "nodes" && x.request.Subresource == "proxy" && (p.rules.Load().RequiresRecording() || !x.verdict.Record.IsZero()) {
		return problem.New(problem.Forbidden, "The policy of the access proxy requires recordings, and a request to a node's own API cannot be recorded.", "Use kubectl exec or kubectl logs.")
	}
	level := levelOf(x.verdict.Record, kind)
	if level == policy.Off || x.upgrade == "" {
		return nil // without an upgrade the API server opens no stream
	}
	required := level == policy.Required
	if p.Recorder == nil {
		if required {
			return problem.New(problem.Forbidden, "The policy requires that this session is recorded, and the access proxy has no recorder.", "Tell an administrator of the cluster.")
		}
		return nil
	}
	s, err := recording.Start(ctx, recording.Config{Sink: p.Recorder, Required: required, Input: p.RecordInput, TTY: isTrue(x.r.URL.Query().Get("tty")),
		Header: x.recordingHeader(kind), Digest: x.recordDigest, Now: p.Now})
	if err != nil {
		return problem.New(problem.Unavailable, "This session must be recorded, and the recording cannot begin.", "Try again later, or tell an administrator of the cluster.").WithCause(err)
	}
	x.recording, x.level = s, level
	return nil
}

// isTrue reports whether the API server reads a query value as true.
func isTrue(value string) bool {
	yes, err := strconv.ParseBool(value)
	return err == nil && yes
}

// recordingHeader returns who and what the recording shows.
func (x *exchange) recordingHeader(kind apiproxy.StreamKind) recording.Header {
	query := x.r.URL.Query()
	command := query["command"]
	userID, _ := strconv.ParseInt(x.caller.UserID, 10, 64) // 0 for a tagged node
	return recording.Header{
		Command: strings.Join(command, " "), SrcNode: x.caller.Device.Name, SrcNodeID: x.caller.Device.ID, SrcNodeTags: x.caller.TagNames(), SrcNodeUserID: userID,
		SrcNodeUser: string(x.caller.Login), LocalUser: x.signin.Name, ConnectionID: x.id,
		Kubernetes: &recording.Kubernetes{PodName: x.request.Name, Namespace: x.request.Namespace, Container: query.Get("container"), SessionType: string(frameKinds[kind])},
		Tailplane: &recording.Details{Cluster: x.proxy.Cluster, SignIn: x.signin.Name, Session: x.session.String(), Role: string(x.signin.Bound.Role()), AuditID: x.id,
			Kind: string(frameKinds[kind]), Command: command},
	}
}

// recordDigest writes the state of a recording into the audit log, every minute and at its end.
func (x *exchange) recordDigest(d recording.Digest) {
	e := audit.Entry{Time: d.At, RequestID: x.id, Actor: audit.ActorOf(x.caller), Surface: "proxy", Verb: access.APIRecording, Object: x.signin.Name, Result: audit.Done,
		Args: map[string]string{"recording": d.ID, "bytes": strconv.FormatInt(d.Bytes, 10), "sha256": d.SHA256}}
	if d.Final {
		e.Args["complete"], e.Args["reason"] = strconv.FormatBool(d.Complete), apiproxy.Sanitize(d.Reason)
		if !d.Complete {
			e.Result = audit.Failed
		}
	}
	x.proxy.record(x.proxy.Record, e)
}

// conn returns what observes the stream: the recording, or only the frames, so that the stream can be ended.
func (x *exchange) conn(answer http.Header) (*frames.Conn, error) {
	kind, ok := frameKinds[apiproxy.StreamKindOf(x.request)]
	if !ok {
		return nil, nil
	}
	protocol, err := frames.Negotiated(kind, answer)
	switch {
	case err == nil && x.recording != nil:
		c, err := x.recording.Conn(protocol)
		if err != nil {
			return nil, problem.New(problem.Forbidden, fmt.Sprintf("This session must be recorded, and its protocol cannot be: %v.", err), "Use a current kubectl.")
		}
		return c, nil
	case err == nil:
		return frames.New(frames.Config{Protocol: protocol}), nil
	case x.level == policy.Required:
		return nil, problem.New(problem.Forbidden, fmt.Sprintf("This session must be recorded, and its protocol is not known: %v.", err), "Use a current kubectl.")
	}
	x.proxy.Log.Warn("the protocol of a stream is not known, so its end has no reason", "audit", x.id, "err", err)
	return nil, nil
}

// cutIfLost cuts the stream when a required recording is lost, until done is closed.
func (x *exchange) cutIfLost(done <-chan struct{}) {
	if x.level != policy.Required {
		return
	}
	select {
	case <-done:
	case <-x.recording.Lost():
		x.proxy.Log.Error("a required recording is lost, so its stream ends", "audit", x.id, "recording", x.recording.ID(), "err", x.recording.Err())
		x.cutLost()
	}
}

// cutLost cuts the stream if its required recording is lost.
func (x *exchange) cutLost() {
	if x.level == policy.Required && x.recording.Err() != nil {
		x.stream.cut(cut{cutRecording, "this session must be recorded, and its recording was lost"})
	}
}

// endRecording ends the recording. It reports the digest to the audit log.
func (x *exchange) endRecording() {
	if x.recording == nil {
		return
	}
	reason := ""
	if why, is := x.cutReason(); is {
		reason = why.reason
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), recordingEnd)
	defer cancel()
	if _, err := x.recording.End(ctx, reason); err != nil && !errors.Is(err, recording.ErrLost) {
		x.proxy.Log.Warn("a recording is not complete", "audit", x.id, "recording", x.recording.ID(), "err", err)
	}
}
