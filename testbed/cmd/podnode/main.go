//go:build linux

// Command podnode is a node of a testbed's cluster that runs pods of our own images as processes of this machine. See
// package podnode; it never outlives the process that started it.
//
// When the node is ready it prints one line of JSON on standard output: {"node","port","isolated","reason","pid"}. It ends
// when standard input closes (its owner is gone) and on SIGTERM.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/testbed/podnode"
	"github.com/tailplane/tailplane/testbed/podnode/kubelet"
	"github.com/tailplane/tailplane/testbed/podnode/sandbox"
)

func main() {
	if sandbox.Inside() {
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "podnode:", err)
		os.Exit(1)
	}
}

// ready is the line on standard output.
type ready struct {
	Node     string `json:"node"`
	Port     int32  `json:"port"`
	Isolated bool   `json:"isolated"`
	Reason   string `json:"reason,omitempty"` // why not
	PID      int    `json:"pid"`
}

// pairs is a flag NAME=VALUE that may be repeated.
type pairs map[string]string

func (p pairs) String() string { return "" }

func (p pairs) Set(s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok || name == "" || value == "" {
		return errors.New("the form is NAME=VALUE")
	}
	p[name] = value
	return nil
}

func run(args []string) error {
	fs := flag.NewFlagSet("podnode", flag.ContinueOnError)
	kubeconfig := fs.String("kubeconfig", "", "the cluster's admin kubeconfig `file`, as devcluster wrote it")
	name := fs.String("name", "podnode", "name of the node")
	shared := fs.Bool("shared", false, "do not isolate pods, even if this machine supports it")
	logFile := fs.String("log", "", "`file` for the node's log; standard error if empty")
	images, carry := pairs{}, pairs{}
	fs.Var(images, "image", "`REFERENCE=PROGRAM`: a static binary, or / for the machine's programs; repeatable")
	fs.Var(carry, "carry", "`ADDRESS=ADDRESS`: connections of pods to the first host and port go to the second; repeatable")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *kubeconfig == "" || fs.NArg() > 0 {
		return errors.New("-kubeconfig is required, and arguments are not allowed")
	}
	out := os.Stderr
	if *logFile != "" {
		f, err := os.OpenFile(*logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		out = f
	}
	log := slog.New(slog.NewTextHandler(out, nil))
	slog.SetDefault(log)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	// Directly under the temporary directory, because Unix sockets lie in it.
	dir, err := os.MkdirTemp("", "pn")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The API server's own certificate is good for 127.0.0.1, and the admin's is what it shows to nodes.
	pki := filepath.Join(filepath.Dir(*kubeconfig), "pki")
	o := podnode.Options{
		Name: *name, Dir: dir, Client: client, Server: server.Host, Images: images, Carry: carry, Log: log,
		Files: kubelet.Files{Cert: filepath.Join(pki, "server.crt"), Key: filepath.Join(pki, "server.key"), ClientCA: filepath.Join(pki, "ca.crt"), Client: "kubernetes-admin"},
	}
	if *shared {
		o.Shared = "a flag turns isolation off"
	} else if err := sandbox.Possible(ctx); err != nil {
		o.Shared = err.Error()
	}
	n, err := podnode.New(o)
	if err != nil {
		return err
	}
	return n.Run(ctx, func() {
		if err := json.NewEncoder(os.Stdout).Encode(ready{Node: *name, Port: n.Port(), Isolated: o.Shared == "", Reason: o.Shared, PID: os.Getpid()}); err != nil {
			log.Error("ready", "err", err)
			cancel()
		}
	})
}
