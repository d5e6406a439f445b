//go:build linux

package podnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/testbed/podnode/sandbox"
	"github.com/tailplane/tailplane/testbed/podnode/volume"
)

func (p *pod) volume(name string) string { return filepath.Join(p.dir, "volumes", name) }

// setUp creates the volumes and the files of every container. It waits for missing sources, as a kubelet does.
func (p *pod) setUp(ctx context.Context, s *sandbox.Sandbox) bool {
	told := ""
	for {
		err := p.setUpOnce(ctx, s)
		if err == nil {
			return true
		}
		p.n.o.Log.Info("set up", "pod", p.key, "err", err)
		if told != err.Error() {
			told = err.Error()
			p.n.event(ctx, p.obj, corev1.EventTypeWarning, "FailedMount", told)
		}
		select {
		case <-p.ending:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(setupAgain):
		}
	}
}

func (p *pod) setUpOnce(ctx context.Context, s *sandbox.Sandbox) error {
	for _, v := range p.obj.Spec.Volumes {
		dir := p.volume(v.Name)
		err := os.Mkdir(dir, 0o777)
		if errors.Is(err, os.ErrExist) {
			continue // left by an earlier attempt; the content is written below
		}
		if err == nil && v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory {
			err = s.Memory(ctx, dir)
		} else if err == nil && v.EmptyDir != nil && v.EmptyDir.Medium != "" {
			err = failure{"NotOnTestbed", "emptyDir medium " + string(v.EmptyDir.Medium) + " is not on the testbed"}
		}
		if err != nil {
			return err
		}
	}
	hosts := fmt.Sprintf("127.0.0.1\tlocalhost\n%s\tkubernetes.default.svc kubernetes.default.svc.cluster.local kubernetes.default kubernetes\n%s\t%s\n", serviceAddress, p.ip, p.obj.Name)
	for name, text := range map[string]string{"hosts": hosts, "hostname": p.obj.Name + "\n", "resolv.conf": "# no DNS on the testbed\n", "passwd": "root:x:0:0::/:/sbin/nologin\nnonroot:x:65532:65532::/:/sbin/nologin\n"} {
		if err := os.WriteFile(filepath.Join(p.dir, "files", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return p.fill(ctx)
}

// fill writes the current content of the volumes.
func (p *pod) fill(ctx context.Context) error {
	for _, v := range p.obj.Spec.Volumes {
		files, err := p.reader.Files(ctx, v)
		if err == nil && files != nil {
			err = volume.Write(p.volume(v.Name), files)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refresh updates volumes from their sources until ctx ends.
func (p *pod) refresh(ctx context.Context) {
	for retry.Sleep(ctx, volumesAgain) == nil {
		if err := p.fill(ctx); err != nil && ctx.Err() == nil {
			p.n.o.Log.Warn("refresh", "pod", p.key, "err", err)
		}
	}
}
