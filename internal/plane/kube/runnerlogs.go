package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// LogReader reads the logs of pods. It needs get on pods/log.
type LogReader struct {
	client corev1client.PodsGetter
	now    func() time.Time
}

// NewLogReader returns a Logs. It sends no request yet.
func NewLogReader(config *rest.Config, now func() time.Time) (*LogReader, error) {
	if config == nil || now == nil {
		return nil, errors.New("the log reader needs a client configuration and a clock")
	}
	c, err := corev1client.NewForConfig(kube.Unthrottled(config))
	if err != nil {
		return nil, err
	}
	return &LogReader{c, now}, nil
}

// Open opens the log of a runner of the permit's organisation. The stream ends with ctx. The caller must close it.
func (s *LogReader) Open(ctx context.Context, p access.Permit, o plane.LogOptions) (io.ReadCloser, error) {
	if err := p.Require(access.LogsRead, s.now()); err != nil {
		return nil, err
	}
	if r := o.Runner; p.Org() != r.OrgName && !p.Everywhere() {
		return nil, problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("a permit of %q was used for the log of %s, which is of %q", p.Org(), r.ID, r.OrgName))
	}
	text, err := s.client.Pods(o.Runner.Namespace).GetLogs(o.Runner.Name, &corev1.PodLogOptions{Container: o.Container, TailLines: new(int64(o.Tail)), Follow: o.Follow}).Stream(ctx)
	switch {
	case err == nil:
		return text, nil
	case apierrors.IsNotFound(err):
		return nil, problem.New(problem.NotFound, "The log no longer exists.", "The pod is gone. Check the job at its forge.").WithCause(err)
	case apierrors.IsBadRequest(err): // the container has not started, or does not exist
		return nil, problem.New(problem.Conflict, "The runner has no log yet.", "Check the runner's pod, and try again in a moment.").WithCause(err)
	case apierrors.IsForbidden(err):
		return nil, problem.New(problem.Unavailable, "This server's account may not read logs.", "Grant it get on pods/log. The chart does this with plane.logs.enabled: true.").WithCause(err)
	}
	return nil, problem.New(problem.Unavailable, "The log cannot be read at the moment.", "Try again in a moment.").WithRetryAfter(time.Second).WithCause(fmt.Errorf("log of %s: %w", o.Runner.ID, err))
}
