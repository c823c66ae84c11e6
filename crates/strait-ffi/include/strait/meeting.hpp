// Starting processes, listening and connecting by name, and invitations.

#ifndef STRAIT_MEETING_HPP
#define STRAIT_MEETING_HPP

#include <strait/channel.hpp>

#include <functional>

namespace strait {

// A program to start. If `environment` is empty, the program gets the environment of this process.
struct Program {
    std::string path;
    // The first argument is the program's own name.
    std::vector<std::string> arguments = {};
    std::vector<std::string> environment = {};
};

// A started process, with a channel. The caller has to wait for the process.
struct Child {
    pid_t pid;
    Channel channel;
};

namespace detail {

inline std::vector<const char *> texts(const std::vector<std::string> &all) {
    std::vector<const char *> texts;
    texts.reserve(all.size() + 1);
    for (const auto &text : all) {
        texts.push_back(text.c_str());
    }
    texts.push_back(nullptr);
    return texts;
}

} // namespace detail

// Starts a program with a channel. The program takes its end with Channel::from_parent.
inline result<Child> spawn(const Program &program, const Options &options = {}) {
    const auto arguments = detail::texts(program.arguments), environment = detail::texts(program.environment);
    pid_t pid = 0;
    auto channel = Channel::make([&](auto **out) {
        return strait_spawn(program.path.c_str(), arguments.data(), program.environment.empty() ? nullptr : environment.data(),
                            options.get(), out, &pid);
    });
    if (!channel) {
        return channel.error();
    }
    return Child{pid, *std::move(channel)};
}

// A channel to a program that is started in another way than with spawn.
struct Inheritance {
    Channel channel;
    // The descriptor for the program to inherit. Close the descriptor once the program has started.
    Fd descriptor;
    // The value of STRAIT_PARENT in the environment of the program.
    std::string value;

    // Makes a channel. The program inherits the descriptor under the number `number`; -1 stands for the present number.
    static result<Inheritance> create(int number = -1, const Options &options = {}) {
        int fd = -1;
        char value[STRAIT_INHERITANCE_LEN] = {};
        auto channel =
            Channel::make([&](auto **out) { return strait_inheritance(options.get(), number, out, &fd, value); });
        if (!channel) {
            return channel.error();
        }
        return Inheritance{*std::move(channel), Fd(fd), value};
    }
};

// Options of a listener; strait_listener_options explains each.
struct ListenerOptions {
    std::string directory = {};
    std::uint32_t mode = 0;
    bool invited_only = false;
    std::uint32_t waiting_of_a_user = 0;
    std::uint32_t waiting_of_all = 0;
    // Neither function may throw, or use the listener.
    std::function<bool(const Peer &)> policy = {};
    std::function<void(const Peer *, const Error &)> on_refused = {};
    Options channel = {};
};

// An invitation: a one-time token with which one process can connect.
class Invitation {
public:
    Invitation(strait_invitation *invitation, std::shared_ptr<const ListenerOptions> options) noexcept
        : options_(std::move(options)), invitation_(invitation) {}

    // Starts a program, which takes its end with Channel::invited, and returns the process number.
    result<pid_t> spawn(const Program &program) const {
        const auto arguments = detail::texts(program.arguments), environment = detail::texts(program.environment);
        pid_t pid = 0;
        const auto status =
            strait_invitation_spawn(invitation_.get(), program.path.c_str(), arguments.data(),
                                    program.environment.empty() ? nullptr : environment.data(), &pid, nullptr);
        if (status != STRAIT_OK) {
            return Error::last(status);
        }
        return pid;
    }

    // Writes the invitation line to a descriptor connected to the standard input of the invited process.
    result<void> tell(int fd) const { return detail::done(strait_invitation_tell(invitation_.get(), fd)); }

    result<Channel> accept(Deadline deadline = Deadline::never()) const {
        return Channel::make([&](auto **out) { return strait_invitation_accept(invitation_.get(), out, deadline.get()); });
    }

private:
    // Destroyed after the invitation, which uses the options.
    std::shared_ptr<const ListenerOptions> options_;
    detail::Owned<strait_invitation, strait_invitation_free> invitation_;
};

// A listener, to which other processes connect by name.
class Listener {
public:
    static result<Listener> bind(const char *name, ListenerOptions options = {}) {
        return make(name, std::move(options), strait_listener_bind);
    }

    // Listens on a socket made by a service manager.
    static result<Listener> activated(const char *name = nullptr, ListenerOptions options = {}) {
        return make(name, std::move(options), strait_listener_activated);
    }

    result<Channel> accept(Deadline deadline = Deadline::never()) const {
        return Channel::make([&](auto **out) { return strait_listener_accept(listener_.get(), out, deadline.get()); });
    }

    result<Invitation> invite(std::chrono::nanoseconds valid_for) const {
        strait_invitation *invitation;
        const auto valid = valid_for.count() < 0 ? 0 : static_cast<std::uint64_t>(valid_for.count());
        if (const auto status = strait_listener_invite(listener_.get(), valid, &invitation); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Invitation(invitation, options_);
    }

    const strait_listener *get() const noexcept { return listener_.get(); }

    // Ends all waits in accept(), now and later: they fail with STRAIT_CLOSED. For another thread that stops a service.
    void stop() const noexcept { strait_listener_stop(listener_.get()); }

    // Returns a descriptor, owned by the listener, that is readable when `accept` may have work to do.
    int fd() const noexcept { return strait_listener_fd(listener_.get()); }
    std::string_view path() const noexcept { return strait_listener_path(listener_.get()); }

private:
    Listener(strait_listener *listener, std::shared_ptr<const ListenerOptions> options) noexcept
        : options_(std::move(options)), listener_(listener) {}

    template <class Call> static result<Listener> make(const char *name, ListenerOptions given, Call call) {
        auto options = std::make_shared<const ListenerOptions>(std::move(given));
        strait_listener_options raw{};
        raw.directory = options->directory.empty() ? nullptr : options->directory.c_str();
        raw.mode = options->mode;
        raw.invited_only = options->invited_only;
        raw.waiting_of_a_user = options->waiting_of_a_user;
        raw.waiting_of_all = options->waiting_of_all;
        raw.channel = options->channel.get();
        raw.context = const_cast<ListenerOptions *>(options.get());
        if (options->policy) {
            raw.policy = [](const strait_peer *peer, void *context) {
                return static_cast<const ListenerOptions *>(context)->policy(*peer);
            };
        }
        if (options->on_refused) {
            raw.on_refused = [](const strait_peer *peer, strait_status why, void *context) {
                static_cast<const ListenerOptions *>(context)->on_refused(peer, Error::last(why));
            };
        }
        strait_listener *listener;
        if (const auto status = call(name, &raw, &listener); status != STRAIT_OK) {
            return Error::last(status);
        }
        return Listener(listener, std::move(options));
    }

    // Destroyed after the listener, which uses the options.
    std::shared_ptr<const ListenerOptions> options_;
    detail::Owned<strait_listener, strait_listener_free> listener_;
};

// Options of a connection; strait_connect_options explains each.
struct ConnectOptions {
    std::string directory = {};
    std::optional<std::uint32_t> server = {};
    Options channel = {};
    // Whether to wait until the deadline for a listener of this name, if there is none yet.
    bool wait_for_listener = false;
};

// Connects to the process that listens under a name, or under an absolute path.
inline result<Channel> connect(const char *name, const ConnectOptions &options, Deadline deadline) {
    strait_connect_options raw{};
    raw.directory = options.directory.empty() ? nullptr : options.directory.c_str();
    raw.channel = options.channel.get();
    raw.server = options.server.value_or(0);
    raw.has_server = options.server.has_value();
    raw.wait_for_listener = options.wait_for_listener;
    return Channel::make([&](auto **out) { return strait_connect(name, &raw, out, deadline.get()); });
}
inline result<Channel> connect(const char *name, Deadline deadline) { return connect(name, {}, deadline); }

} // namespace strait

#endif
