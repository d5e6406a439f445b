package testenv

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// Node is the testbed's podnode: a cluster node that runs pods of known images as processes of this machine. It ends
// with this process, even after a crash.
type Node struct {
	Name     string `json:"node"`
	Isolated bool   `json:"isolated"` // pods have their own namespaces
	Reason   string `json:"reason"`   // why pods are not isolated
	PID      int    `json:"pid"`
	Log      string `json:"-"` // path of its log

	stdin io.Closer
	cmd   *exec.Cmd
	done  chan struct{}
}

// NodeOptions configure a Node. Only Images is required.
type NodeOptions struct {
	Name string // "podnode" if empty
	// Images maps image references to programs of the build cache. A reference without tag and digest matches all
	// tags and digests. "/" is an image with the machine's own programs.
	Images map[string]string
	Carry  map[string]string // destinations that pods reach in addition to the API server, and their host:port
	Shared bool              // do not isolate pods, as on a machine that does not support it
}

// StartNode starts a node with its log in dir, and returns when the node accepts pods.
func StartNode(ctx context.Context, c *kubetest.Cluster, dir string, o NodeOptions) (*Node, error) {
	bin, err := buildcache.Lookup("podnode")
	if err != nil {
		return nil, err
	}
	n := &Node{Log: filepath.Join(dir, "podnode.log"), done: make(chan struct{})}
	args := []string{"-kubeconfig", c.Kubeconfig, "-log", n.Log}
	if o.Name != "" {
		args = append(args, "-name", o.Name)
	}
	if o.Shared {
		args = append(args, "-shared")
	}
	for ref, program := range o.Images {
		path := program
		if program != "/" {
			if path, err = buildcache.Lookup(program); err != nil {
				return nil, err
			}
		}
		args = append(args, "-image", ref+"="+path)
	}
	for from, to := range o.Carry {
		args = append(args, "-carry", from+"="+to)
	}
	n.cmd = exec.Command(bin, args...)
	var errs bytes.Buffer
	n.cmd.Stderr = &errs
	if n.stdin, err = n.cmd.StdinPipe(); err != nil { // the node ends when this is closed
		return nil, err
	}
	stdout, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	line := make(chan []byte, 1)
	go func() {
		r := bufio.NewReader(stdout)
		if l, err := r.ReadBytes('\n'); err == nil {
			line <- l
		}
		_, _ = io.Copy(io.Discard, r)
		_ = n.cmd.Wait()
		close(n.done)
	}()
	select {
	case l := <-line:
		if err := json.Unmarshal(l, n); err != nil {
			n.Close()
			return nil, fmt.Errorf("output of podnode: %q: %w", l, err)
		}
		return n, nil
	case <-n.done:
		return nil, fmt.Errorf("podnode ended: %v: %s", n.cmd.ProcessState, errs.String())
	case <-ctx.Done():
		n.Close()
		return nil, fmt.Errorf("podnode: %w", ctx.Err())
	}
}

// Close stops the node and every process of its pods.
func (n *Node) Close() error {
	n.stdin.Close()
	select {
	case <-n.done:
		return nil
	case <-time.After(40 * time.Second):
		n.cmd.Process.Kill()
		<-n.done
		return fmt.Errorf("podnode did not stop")
	}
}
