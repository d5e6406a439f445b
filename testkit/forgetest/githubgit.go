package forgetest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tailplane/tailplane/testkit/forgetest/history"
)

// repositoryGit is the content of a repository, and its pull requests.
type repositoryGit struct {
	*history.Repository
	logins  map[string]string // GitHub logins of commit authors
	pulls   []*GitHubPull     // the first has number 1
	reviews map[string]int    // number of reviews that a branch requires
	most    int               // maximum number of entries in a tree response
}

func newRepositoryGit() *repositoryGit {
	return &repositoryGit{Repository: history.New(), logins: map[string]string{}, reviews: map[string]int{}, most: 100_000}
}

// GitHubCommit is a commit with all its files.
type GitHubCommit struct {
	SHA, Parent                   string
	Message                       string
	AuthorName, AuthorEmail       string
	AuthorLogin                   string // empty: GitHub knows no account for the address
	CommitterEmail, CommitterName string
	Files                         map[string]string
}

// GitHubPull is a pull request.
type GitHubPull struct {
	Number             int
	Title, Body, State string
	Head, Base         string // branches
	Last               string // the head commit after it was merged or closed
	Merged, Draft      bool
	By                 string
	Labels             []string
	Comments           []string
	Reviews            []GitHubReview
	Checks             []GitHubCheck
	root               string // commit where it branched off its base
}

// GitHubReview is a review of one commit.
type GitHubReview struct {
	By, State, Commit string
	At                time.Time
}

// GitHubCheck is a check run, or with Status a commit status.
type GitHubCheck struct {
	Name, State string
	Status      bool
}

// Bot is the login of an App that writes commits and comments.
const Bot = "tailplane[bot]"

// commit adds a commit to a branch. It changes the branch's files; nil content deletes a file.
func (b *repositoryGit) commit(branch string, c GitHubCommit, change map[string]*string) string {
	last, _ := b.Commit(b.Head(branch))
	files := map[string]string{}
	maps.Copy(files, last.Files)
	for path, content := range change {
		if content == nil {
			delete(files, path)
		} else {
			files[path] = *content
		}
	}
	id := b.Add(branch, history.Commit{
		Parent: last.ID, Message: c.Message, AuthorName: c.AuthorName, AuthorEmail: c.AuthorEmail,
		CommitterName: c.CommitterName, CommitterEmail: c.CommitterEmail, Files: files,
	})
	b.logins[id] = c.AuthorLogin
	return id
}

// TreeLimit sets the maximum number of entries in a tree response of a repository.
func (g *GitHubFake) TreeLimit(repository int64, most int) {
	g.change(func() { g.repos[repository].git.most = most })
}

// since returns the commits of a pull request, oldest first.
func (b *repositoryGit) since(head, root string) []history.Commit {
	log := b.Log(head)
	if at := slices.IndexFunc(log, func(c history.Commit) bool { return c.ID == root }); at >= 0 {
		log = log[:at]
	}
	slices.Reverse(log)
	return log
}

// headOf returns the head commit of a pull request.
func (b *repositoryGit) headOf(p *GitHubPull) string {
	if at := b.Head(p.Head); at != "" && p.State == "open" {
		return at
	}
	return p.Last
}

// merged returns the files after a merge of a pull request. It returns false on a conflict.
func (b *repositoryGit) merged(p *GitHubPull) (map[string]string, bool) {
	return b.Merged(b.headOf(p), p.Base)
}

// approved returns the number of approving reviews.
func (b *repositoryGit) approved(p *GitHubPull) int {
	n := 0
	for _, r := range p.Reviews {
		if r.State == "APPROVED" {
			n++
		}
	}
	return n
}

// Push commits to a branch, as a user does with git. A new branch starts at main. Nil content deletes a file.
func (g *GitHubFake) Push(repository int64, branch string, c GitHubCommit, change map[string]*string) (sha string) {
	g.change(func() {
		b := g.repos[repository].git
		if b.Head(branch) == "" {
			b.Branch(branch, b.Head("main"))
		}
		c.AuthorName, c.AuthorEmail = cmp.Or(c.AuthorName, "Someone"), cmp.Or(c.AuthorEmail, "someone@example.com")
		c.CommitterName, c.CommitterEmail = cmp.Or(c.CommitterName, c.AuthorName), cmp.Or(c.CommitterEmail, c.AuthorEmail)
		sha = b.commit(branch, c, change)
	})
	return sha
}

// Commit returns the last commit of a branch. Its SHA is empty if the branch does not exist.
func (g *GitHubFake) Commit(repository int64, branch string) (c GitHubCommit) {
	g.change(func() {
		b := g.repos[repository].git
		x, _ := b.Commit(b.Head(branch))
		c = GitHubCommit{
			SHA: x.ID, Parent: x.Parent, Message: x.Message,
			AuthorName: x.AuthorName, AuthorEmail: x.AuthorEmail, AuthorLogin: b.logins[x.ID],
			CommitterEmail: x.CommitterEmail, CommitterName: x.CommitterName, Files: maps.Clone(x.Files),
		}
	})
	return c
}

// Pulls returns the pull requests of a repository.
func (g *GitHubFake) Pulls(repository int64) (out []GitHubPull) {
	g.change(func() {
		for _, p := range g.repos[repository].git.pulls {
			c := *p
			c.Labels, c.Reviews, c.Checks = slices.Clone(p.Labels), slices.Clone(p.Reviews), slices.Clone(p.Checks)
			out = append(out, c)
		}
	})
	return out
}

// ChangePull changes a pull request, as users do.
func (g *GitHubFake) ChangePull(repository int64, number int, change func(*GitHubPull)) {
	g.change(func() { change(g.repos[repository].git.pulls[number-1]) })
}

// Review adds a user's review of the current commit of a pull request.
func (g *GitHubFake) Review(repository int64, number int, by, state string) {
	g.change(func() {
		b := g.repos[repository].git
		p := b.pulls[number-1]
		p.Reviews = append(p.Reviews, GitHubReview{By: by, State: state, Commit: b.headOf(p), At: g.now()})
	})
}

// Protect sets the number of approving reviews that a branch requires.
func (g *GitHubFake) Protect(repository int64, branch string, reviews int) {
	g.change(func() { g.repos[repository].git.reviews[branch] = reviews })
}
