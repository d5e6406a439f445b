//go:build linux

package podnode

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// writeAgain is the delay before a failed status update is retried.
const writeAgain = 200 * time.Millisecond

// publish writes the pod's status after each change, until over is closed and the last status is written. No other
// function writes it.
func (p *pod) publish(ctx context.Context, over <-chan struct{}) {
	var written corev1.PodStatus
	for last := false; ; {
		now := p.status()
		if !equality.Semantic.DeepEqual(now, written) {
			switch err := p.write(ctx, now); {
			case err == nil:
				written = now
			case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // another pod with that name exists now
				return
			case ctx.Err() != nil:
				return
			default:
				p.n.o.Log.Warn("status", "pod", p.key, "err", err)
				if retry.Sleep(ctx, writeAgain) != nil {
					return
				}
				continue
			}
		}
		if last {
			return
		}
		select {
		case <-p.dirty:
		case <-over:
			last = true
		case <-ctx.Done():
			return
		}
	}
}

func (p *pod) write(ctx context.Context, s corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.obj.UID}, "status": s})
	if err != nil {
		return err
	}
	_, err = p.n.o.Client.CoreV1().Pods(p.obj.Namespace).Patch(ctx, p.obj.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "podnode"}, "status")
	return err
}

// remove deletes the object of a pod that has ended.
func (p *pod) remove(ctx context.Context) {
	for {
		err := p.n.o.Client.CoreV1().Pods(p.obj.Namespace).Delete(ctx, p.obj.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(p.obj.UID)),
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		p.n.o.Log.Warn("remove", "pod", p.key, "err", err)
		if retry.Sleep(ctx, writeAgain) != nil {
			return
		}
	}
}

// status returns the current status of the pod.
func (p *pod) status() corev1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := corev1.PodStatus{
		StartTime: new(metav1.NewTime(p.startTime.Truncate(time.Second))), HostIP: "127.0.0.1", HostIPs: []corev1.HostIP{{IP: "127.0.0.1"}},
	}
	if p.sandbox != nil {
		s.PodIP, s.PodIPs = p.ip, []corev1.PodIP{{IP: p.ip}}
	}
	ready, running, ended, bad := true, false, 0, false
	for _, c := range p.inits {
		st := c.snapshot()
		s.InitContainerStatuses = append(s.InitContainerStatuses, st)
		if c.sidecar {
			ready = ready && st.Ready
		} else if st.State.Terminated != nil && st.State.Terminated.ExitCode != 0 {
			bad = true
		}
	}
	for _, c := range p.mains {
		st := c.snapshot()
		s.ContainerStatuses = append(s.ContainerStatuses, st)
		ready = ready && st.Ready
		running = running || st.State.Running != nil || st.LastTerminationState.Terminated != nil
		if st.State.Terminated != nil {
			ended++
			bad = bad || st.State.Terminated.ExitCode != 0
		}
	}
	s.Phase = corev1.PodPending
	switch {
	case p.failed != nil:
		s.Phase, s.Reason, s.Message = corev1.PodFailed, p.failed.reason, p.failed.message
	case p.finished && bad:
		s.Phase = corev1.PodFailed
	case p.finished && ended == len(p.mains):
		s.Phase = corev1.PodSucceeded
	case p.finished && p.deleted():
		s.Phase = corev1.PodFailed
	case running || ended > 0:
		s.Phase = corev1.PodRunning
	}
	over := s.Phase == corev1.PodFailed || s.Phase == corev1.PodSucceeded
	is := func(t corev1.PodConditionType, yes bool, reason string) {
		c := corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason}
		if yes {
			c.Status, c.Reason = corev1.ConditionTrue, ""
		}
		// The transition time changes only with the status.
		if was, ok := p.since[t]; ok && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		} else {
			c.LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
		}
		p.since[t] = c
		s.Conditions = append(s.Conditions, c)
	}
	unready := "ContainersNotReady"
	if over {
		unready = "PodCompleted"
	}
	is(corev1.PodScheduled, true, "")
	is(corev1.PodReadyToStartContainers, p.sandbox != nil && !over, "")
	is(corev1.PodInitialized, p.initialized, "ContainersNotInitialized")
	is(corev1.ContainersReady, p.initialized && ready && !over, unready)
	is(corev1.PodReady, p.initialized && ready && !over, unready)
	return s
}

func (c *container) snapshot() corev1.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.status.DeepCopy()
}
