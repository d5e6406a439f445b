// Command tailnet runs a tailnet on loopback for manual tests: control server, relay, the HTTP API and some nodes.
// For each person it runs a proxy, through which any program of this machine acts as that person. Tagged nodes return
// the WhoIs result of the caller on port 80.
//
//	go run ./cmd/tailnet                                      # a server, alice and bob
//	go run ./cmd/tailnet -policy p.hujson db=tag:db carol=carol@example.com
//	go run ./cmd/tailnet -exit                                # one request as each person, then end
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tailplane/tailplane/testkit/tailnettest"
	"tailscale.com/tsnet"
)

//go:embed policy.hujson
var policy string

func main() {
	var o options
	flag.StringVar(&o.policy, "policy", "", "policy `file`; if empty, a copy of a small policy")
	flag.StringVar(&o.suffix, "suffix", "tiny.ts.net", "MagicDNS suffix")
	flag.BoolVar(&o.strict, "strict", false, "open no wildcard socket (no Funnel)")
	flag.BoolVar(&o.exit, "exit", false, "send one request to every server as every person, then exit")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: tailnet [flags] [host=login|host=tag:name …]")
		flag.PrintDefaults()
	}
	flag.Parse()
	o.nodes = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "tailnet:", err)
		os.Exit(1)
	}
}

type options struct {
	policy, suffix string
	strict, exit   bool
	nodes          []string
}

// member is a node of the tailnet and its owner.
type member struct {
	*tsnet.Server
	owner string // a login or a tag
}

func (m member) tagged() bool { return strings.HasPrefix(m.owner, "tag:") }

func run(ctx context.Context, o options) (err error) {
	tailnettest.Quiet()
	dir, err := os.MkdirTemp("", "tailnet-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.policy == "" {
		o.policy = filepath.Join(dir, "policy.hujson")
		if err := os.WriteFile(o.policy, []byte(policy), 0o600); err != nil {
			return err
		}
	}
	n, err := tailnettest.Run(dir, tailnettest.Options{Suffix: o.suffix, PolicyFile: o.policy, StrictLoopback: o.strict, Logf: say})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()

	members, err := join(ctx, n, o.nodes)
	if err != nil {
		return err
	}
	if o.exit {
		return askAll(ctx, members)
	}
	if err := announce(n, dir, o.policy, members); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// say prints the messages about the policy file for the person at the terminal.
func say(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); strings.HasPrefix(s, "policy file") {
		fmt.Println(s)
	}
}

// join starts the nodes. Without names, it starts a server and two people.
func join(ctx context.Context, n *tailnettest.Net, nodes []string) ([]member, error) {
	if len(nodes) == 0 {
		nodes = []string{"server=tag:server", "alice=alice@example.com", "bob=bob@example.com"}
	}
	var members []member
	var servers []*tsnet.Server
	for _, arg := range nodes {
		host, owner, ok := strings.Cut(arg, "=")
		if !ok || host == "" || owner == "" {
			return nil, fmt.Errorf("%q is not host=login or host=tag:name", arg)
		}
		m := member{owner: owner}
		if m.tagged() {
			m.Server = n.Node(host, "", strings.Split(owner, ",")...)
		} else {
			m.Server = n.Node(host, owner)
		}
		members, servers = append(members, m), append(servers, m.Server)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := n.Ready(ctx, servers...); err != nil {
		return nil, err
	}
	for _, m := range members {
		if m.tagged() {
			if err := serveWhoIs(m.Server); err != nil {
				return nil, fmt.Errorf("%s: %w", m.Hostname, err)
			}
		}
	}
	return members, nil
}

// announce prints how to use the tailnet.
func announce(n *tailnettest.Net, dir, policy string, members []member) error {
	api, err := n.API()
	if err != nil {
		return err
	}
	client := api.Client([]string{"all"}, "tag:server")
	for name, value := range map[string]string{"client_id": client.ID, "client_secret": client.Secret} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			return err
		}
	}
	fmt.Printf("control   %s   a program joins with this control URL and this environment:\n          %s\n",
		n.ControlURL(), strings.Join(tailnettest.ChildEnv(), " "))
	fmt.Printf("API       %s   OAuth client in %s\n", api.URL(), filepath.Join(dir, "client_{id,secret}"))
	fmt.Printf("policy    %s   changes take effect at once\n", policy)
	for _, m := range members {
		if m.tagged() {
			fmt.Printf("%-9s %s: http://%s.%s/ shows the identity of the caller\n", m.Hostname, m.owner, m.Hostname, n.Suffix())
			continue
		}
		proxy, err := n.Persona(m.Server)
		if err != nil {
			return err
		}
		fmt.Printf("%-9s curl -x %s http://<host>.%s/   (%s)\n", m.Hostname, proxy, n.Suffix(), m.owner)
	}
	fmt.Println("While this runs, every program on this machine can act as these people. Ctrl-C ends it.")
	return nil
}

// askAll sends one request as each person to each tagged node.
func askAll(ctx context.Context, members []member) error {
	for _, m := range members {
		for _, srv := range members {
			if m.tagged() || !srv.tagged() {
				continue
			}
			said, err := ask(ctx, m.Server, "http://"+srv.Hostname+"/")
			if err != nil {
				return fmt.Errorf("request from %s to %s: %w", m.Hostname, srv.Hostname, err)
			}
			fmt.Printf("request from %s to %s: %s\n", m.Hostname, srv.Hostname, said)
		}
	}
	return nil
}

func ask(ctx context.Context, s *tsnet.Server, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	return text(s.HTTPClient().Do(req))
}
