// A stand-in for NVIDIA's NCCL, for tests only and in no wheel: a test double of the hardware.
//
// Collectives run over loopback sockets, all through rank 0, on the streams of the stand-in for CUDA. It is as
// unpleasant as the real one may be: it does not notice that a peer is gone, so that a kernel waits until its
// communicator is aborted; an aborted kernel goes on for a moment, then leaves garbage and counts as done; calls
// return before they have had an effect. Kernels and sends to a communicator that does not live end the process.

#include <nccl.h>

#include <cuda_runtime_api.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<char>;

constexpr auto kEffectOfACall = std::chrono::microseconds(300);
constexpr auto kEndOfAnAbortedKernel = std::chrono::milliseconds(20);

struct Stopped {};

// What a communicator needs as long as a kernel or a thread of it runs.
struct Ring {
  ~Ring() {
    for (int fd : sockets) {
      if (fd >= 0) close(fd);
    }
    close(stop);
  }

  // All bytes, or Stopped. A peer that is gone is not noticed: the wait goes on until the abort.
  template <typename Call>
  void all(int fd, short what, size_t size, Call call) {
    for (size_t done = 0; done < size;) {
      pollfd wait[] = {{fd, what, 0}, {stop, POLLIN, 0}};
      poll(wait, 2, -1);
      if (wait[1].revents) throw Stopped();
      auto some = call(done, size - done);
      if (some == 0 || (some < 0 && errno != EAGAIN && errno != EINTR)) wait_for_abort();
      if (some > 0) done += some;
    }
  }
  void send_all(int fd, const void* data, size_t size) {
    all(fd, POLLOUT, size, [&](size_t at, size_t left) {
      return send(fd, static_cast<const char*>(data) + at, left, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
  }
  void receive_all(int fd, void* data, size_t size) {
    all(fd, POLLIN, size,
        [&](size_t at, size_t left) { return recv(fd, static_cast<char*>(data) + at, left, MSG_DONTWAIT); });
  }
  [[noreturn]] void wait_for_abort() {
    pollfd wait = {stop, POLLIN, 0};
    poll(&wait, 1, -1);
    throw Stopped();
  }

  int rank = 0, size = 0;
  std::vector<int> sockets;  // to every rank on rank 0, to rank 0 elsewhere
  int stop = eventfd(0, EFD_CLOEXEC);
  std::atomic<int> state{ncclInProgress};
  std::atomic<int> kernels{0};
  std::atomic<Clock::rep> effective_at{0};
};

std::mutex listeners_mutex;
std::map<int, int> listeners;  // port -> socket, until its ring is formed

std::mutex living_mutex;
std::set<ncclComm_t> living;

}  // namespace

struct ncclComm {
  std::shared_ptr<Ring> ring = std::make_shared<Ring>();
};

namespace {

std::shared_ptr<Ring> ring_of(ncclComm_t comm, const char* call) {
  std::lock_guard<std::mutex> guard(living_mutex);
  if (!living.count(comm)) {
    std::fprintf(stderr, "the stand-in for NCCL: %s with a communicator that does not live\n", call);
    std::abort();
  }
  return comm->ring;
}

void end(ncclComm_t comm, const char* call) {
  ring_of(comm, call);
  std::lock_guard<std::mutex> guard(living_mutex);
  living.erase(comm);
  delete comm;
}

void connect_all(Ring& ring, int port) {
  int no_delay = 1;
  if (ring.rank == 0) {
    int listener;
    {
      std::lock_guard<std::mutex> guard(listeners_mutex);
      listener = listeners.at(port);
      listeners.erase(port);
    }
    ring.sockets.assign(ring.size, -1);
    std::unique_ptr<int, void (*)(int*)> closing(&listener, [](int* fd) { close(*fd); });
    for (int come = 1; come < ring.size; ++come) {
      pollfd wait[] = {{listener, POLLIN, 0}, {ring.stop, POLLIN, 0}};
      poll(wait, 2, -1);
      if (wait[1].revents) throw Stopped();
      int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      int rank;
      ring.receive_all(fd, &rank, sizeof rank);
      ring.sockets[rank] = fd;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof no_delay);
    }
    // As the real one, nobody is done before all have come.
    for (int rank = 1; rank < ring.size; ++rank) ring.send_all(ring.sockets[rank], "", 1);
  } else {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ring.sockets = {fd};
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ring.wait_for_abort();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof no_delay);
    ring.send_all(fd, &ring.rank, sizeof ring.rank);
    char go;
    ring.receive_all(fd, &go, 1);
  }
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <typename T>
void combine(void* into, const void* other, size_t count, ncclRedOp_t op) {
  auto* a = static_cast<T*>(into);
  auto* b = static_cast<const T*>(other);
  for (size_t i = 0; i < count; ++i) {
    a[i] = op == ncclProd  ? static_cast<T>(a[i] * b[i])
           : op == ncclMin ? std::min(a[i], b[i])
           : op == ncclMax ? std::max(a[i], b[i])
                           : static_cast<T>(a[i] + b[i]);
  }
}

template <typename T>
void divide(void* into, size_t count, int by) {
  for (size_t i = 0; i < count; ++i) static_cast<T*>(into)[i] /= by;
}

#define FOR_TYPE(type, function, ...)                                  \
  switch (type) {                                                      \
    case ncclInt8: function<signed char>(__VA_ARGS__); break;          \
    case ncclUint8: function<unsigned char>(__VA_ARGS__); break;       \
    case ncclFloat16: function<_Float16>(__VA_ARGS__); break;          \
    case ncclInt32: function<int>(__VA_ARGS__); break;                 \
    case ncclFloat32: function<float>(__VA_ARGS__); break;             \
    case ncclInt64: function<long>(__VA_ARGS__); break;                \
    default: function<double>(__VA_ARGS__); break;                     \
  }

// Everybody's bytes come to rank 0, which makes of them what everybody gets.
using Answer = std::function<Bytes(const std::vector<Bytes>&, int rank)>;

void exchange(Ring& ring, const void* input, size_t size, void* output, size_t output_size, const Answer& answer) {
  auto* mine = static_cast<const char*>(input);
  if (ring.rank != 0) {
    ring.send_all(ring.sockets[0], mine, size);
    Bytes got(output_size);
    ring.receive_all(ring.sockets[0], got.data(), got.size());
    if (output_size) std::memcpy(output, got.data(), got.size());
    return;
  }
  std::vector<Bytes> all(ring.size, Bytes(size));
  if (size) std::memcpy(all[0].data(), mine, size);
  for (int rank = 1; rank < ring.size; ++rank) ring.receive_all(ring.sockets[rank], all[rank].data(), size);
  for (int rank = 1; rank < ring.size; ++rank) {
    auto bytes = answer(all, rank);
    ring.send_all(ring.sockets[rank], bytes.data(), bytes.size());
  }
  auto bytes = answer(all, 0);
  if (output_size) std::memcpy(output, bytes.data(), output_size);
}

ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, const char* call, void* output, size_t output_size,
                    std::function<void(Ring&)> kernel) {
  auto ring = ring_of(comm, call);
  struct Work {
    std::shared_ptr<Ring> ring;
    std::function<void(Ring&)> kernel;
    void* output;
    size_t output_size;
  };
  ring->kernels++;
  ring->effective_at = (Clock::now() + kEffectOfACall).time_since_epoch().count();
  cudaLaunchHostFunc(
      stream,
      [](void* data) {
        std::unique_ptr<Work> work(static_cast<Work*>(data));
        try {
          work->kernel(*work->ring);
        } catch (const Stopped&) {
          std::this_thread::sleep_for(kEndOfAnAbortedKernel);
          std::memset(work->output, 0x7b, work->output_size);
        }
        work->ring->kernels--;
      },
      new Work{ring, std::move(kernel), output, output_size});
  return ncclInProgress;
}

Bytes reduced(const std::vector<Bytes>& all, ncclDataType_t type, ncclRedOp_t op) {
  Bytes sum = all[0];
  auto count = sum.size() / size_of(type);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    FOR_TYPE(type, combine, sum.data(), all[rank].data(), count, op)
  }
  if (op == ncclAvg) {
    FOR_TYPE(type, divide, sum.data(), count, static_cast<int>(all.size()))
  }
  return sum;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "an error of the stand-in for NCCL"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 64) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    close(listener);
    return ncclSystemError;
  }
  int port = ntohs(address.sin_port);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &port, sizeof port);
  std::lock_guard<std::mutex> guard(listeners_mutex);
  listeners[port] = listener;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;
  *comm = new ncclComm;
  auto ring = (*comm)->ring;
  ring->rank = rank;
  ring->size = size;
  int port;
  std::memcpy(&port, &id, sizeof port);
  {
    std::lock_guard<std::mutex> guard(living_mutex);
    living.insert(*comm);
  }
  std::thread([ring, port] {
    try {
      connect_all(*ring, port);
      ring->state = ncclSuccess;
    } catch (const Stopped&) {
    }
  }).detach();
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  auto ring = ring_of(comm, "ncclCommGetAsyncError");
  bool effective = Clock::now().time_since_epoch().count() >= ring->effective_at;
  *state = effective ? static_cast<ncclResult_t>(ring->state.load()) : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  uint64_t one = 1;
  auto ring = ring_of(comm, "ncclCommAbort");
  if (write(ring->stop, &one, sizeof one) != sizeof one) return ncclSystemError;
  end(comm, "ncclCommAbort");
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  auto ring = ring_of(comm, "ncclCommFinalize");
  if (ring->state != ncclSuccess) return ncclInvalidUsage;
  ring->state = ncclInProgress;
  std::thread([ring] {
    while (ring->kernels > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ring->state = ncclSuccess;
  }).detach();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  end(comm, "ncclCommDestroy");
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  auto size = count * size_of(type);
  return launch(comm, stream, "ncclAllReduce", output, size, [=](Ring& ring) {
    exchange(ring, input, size, output, size,
             [&](const std::vector<Bytes>& all, int) { return reduced(all, type, op); });
  });
}

ncclResult_t ncclReduce(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  auto size = count * size_of(type);
  auto mine = [root](const Ring& ring, size_t size) { return ring.rank == root ? size : 0; };
  return launch(comm, stream, "ncclReduce", output, mine(*ring_of(comm, "ncclReduce"), size), [=](Ring& ring) {
    exchange(ring, input, size, output, mine(ring, size), [&](const std::vector<Bytes>& all, int rank) {
      return rank == root ? reduced(all, type, op) : Bytes();
    });
  });
}

ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  auto size = count * size_of(type);
  return launch(comm, stream, "ncclReduceScatter", output, size, [=](Ring& ring) {
    exchange(ring, input, size * ring.size, output, size, [&](const std::vector<Bytes>& all, int rank) {
      auto sum = reduced(all, type, op);
      return Bytes(sum.begin() + rank * size, sum.begin() + (rank + 1) * size);
    });
  });
}

ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  auto size = count * size_of(type);
  return launch(comm, stream, "ncclBroadcast", output, size, [=](Ring& ring) {
    exchange(ring, ring.rank == root ? input : output, size, output, size,
             [&](const std::vector<Bytes>& all, int) { return all[root]; });
  });
}

ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  auto size = count * size_of(type);
  auto total = size * ring_of(comm, "ncclAllGather")->size;
  return launch(comm, stream, "ncclAllGather", output, total, [=](Ring& ring) {
    exchange(ring, input, size, output, total, [&](const std::vector<Bytes>& all, int) {
      Bytes gathered;
      for (auto& each : all) gathered.insert(gathered.end(), each.begin(), each.end());
      return gathered;
    });
  });
}

// Not used by a job: Horovod's library only has to find them.
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclInvalidUsage; }
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }

}  // extern "C"
