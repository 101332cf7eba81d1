// A stand-in for NVIDIA's CUDA runtime, for tests only and in no wheel: a test double of the hardware.
//
// Device memory is memory of the process, a stream is a thread that does one thing after the other, an event
// is a place in a stream. Horovod's GPU code runs on it unchanged; whether it runs on a GPU this cannot tell.

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <thread>

namespace {

// Whether a stream has come to this place.
struct Mark {
  void reach() {
    {
      std::lock_guard<std::mutex> guard(mutex);
      reached = true;
    }
    changed.notify_all();
  }
  bool ready() {
    std::lock_guard<std::mutex> guard(mutex);
    return reached;
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
};

struct Stream {
  Stream() : thread([this] { run(); }) { thread.detach(); }
  void add(std::function<void()> work) {
    {
      std::lock_guard<std::mutex> guard(mutex);
      queue.push(std::move(work));
    }
    changed.notify_one();
  }
  void run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return !queue.empty(); });
      auto work = std::move(queue.front());
      queue.pop();
      lock.unlock();
      work();
    }
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::queue<std::function<void()>> queue;
  std::thread thread;
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Mark> mark;
};

// The stream 0 of CUDA: what is given to it is done at once.
void add(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) {
    work();
  } else {
    reinterpret_cast<Stream*>(stream)->add(std::move(work));
  }
}

std::shared_ptr<Mark> mark_of(cudaEvent_t event) {
  auto* ours = reinterpret_cast<Event*>(event);
  std::lock_guard<std::mutex> guard(ours->mutex);
  return ours->mark;
}

thread_local int current_device = 0;

// As Horovod's cuda_params.h has it.
struct Copies {
  void* out[160];
  void* in[160];
  size_t sizes[160];
};
constexpr unsigned kBlocksPerCopy = 8;

template <typename T, typename F>
void scale(const void* in, void* out, size_t count, F factor) {
  auto* from = static_cast<const T*>(in);
  auto* to = static_cast<T*>(out);
  for (size_t i = 0; i < count; ++i) {
    to[i] = static_cast<T>(factor * from[i]);
  }
}

using Scale = void (*)(const void*, void*, size_t, const void*);

template <typename T, typename F>
void scale_by(const void* in, void* out, size_t count, const void* factor) {
  scale<T, F>(in, out, count, *static_cast<const F*>(factor));
}

struct Element {
  size_t size, factor_size;
  Scale scale;
};

// By the letters that a mangled name has for the types of element and factor.
const std::map<std::string, Element> elements = {
    {"hd", {1, 8, scale_by<unsigned char, double>}},
    {"ad", {1, 8, scale_by<signed char, double>}},
    {"id", {4, 8, scale_by<int, double>}},
    {"ld", {8, 8, scale_by<long, double>}},
    {"half", {2, 2, scale_by<_Float16, _Float16>}},
    {"ff", {4, 4, scale_by<float, float>}},
    {"dd", {8, 8, scale_by<double, double>}},
};

struct Kernel {
  enum { COPY, SCALE, SCALED_COPY } kind;
  Element element;
};

const Element& element_of(const std::string& symbol, const std::string& before) {
  if (symbol.find("6__half") != std::string::npos) {
    return elements.at("half");
  }
  auto at = symbol.find(before) + before.size();
  auto letters = symbol.substr(at, 1);
  auto factor = symbol.find("Li8E", at) == std::string::npos ? symbol.substr(at + 1, 1) : symbol.substr(at + 5, 1);
  return elements.at(letters + factor);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 8 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  auto mark = std::make_shared<Mark>();
  add(stream, [mark] { mark->reach(); });
  mark->wait();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto mark = std::make_shared<Mark>();
  {
    auto* ours = reinterpret_cast<Event*>(event);
    std::lock_guard<std::mutex> guard(ours->mutex);
    ours->mark = mark;
  }
  add(stream, [mark] { mark->reach(); });
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  auto mark = mark_of(event);
  return mark == nullptr || mark->ready() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (auto mark = mark_of(event)) mark->wait();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  if (auto mark = mark_of(event)) add(stream, [mark] { mark->wait(); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t count, cudaMemcpyKind, cudaStream_t stream) {
  add(stream, [=] { std::memmove(to, from, count); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t count, cudaStream_t stream) {
  add(stream, [=] { std::memset(to, value, count); });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  add(stream, [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned int,
                                cudaLibraryOption*, void**, unsigned int) {
  // A cubin is an ELF file; what was chosen for compute capability 8.0 is one.
  if (std::memcmp(code, "\177ELF", 4) != 0) return cudaErrorInvalidKernelImage;
  *library = reinterpret_cast<cudaLibrary_t>(const_cast<void*>(code));
  return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
  std::string symbol = name;
  auto* found = new Kernel;
  if (symbol.find("batched_memcpy_k") != std::string::npos) {
    found->kind = Kernel::COPY;
  } else if (symbol.find("batched_scaled_memcpy_k") != std::string::npos) {
    found->kind = Kernel::SCALED_COPY;
    found->element = element_of(symbol, "batched_scaled_memcpy_kI");
  } else if (symbol.find("scale_buffer_") != std::string::npos) {
    found->kind = Kernel::SCALE;
    found->element = element_of(symbol, "scale_buffer_kI");
  } else {
    delete found;
    return cudaErrorSymbolNotFound;
  }
  *kernel = reinterpret_cast<cudaKernel_t>(found);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3, void** arguments, size_t,
                             cudaStream_t stream) {
  auto kernel = *static_cast<const Kernel*>(function);
  if (kernel.kind == Kernel::SCALE) {
    auto* in = *static_cast<void**>(arguments[0]);
    auto* out = *static_cast<void**>(arguments[1]);
    auto count = *static_cast<long*>(arguments[2]);
    auto factor = std::string(static_cast<char*>(arguments[3]), kernel.element.factor_size);
    add(stream, [=] { kernel.element.scale(in, out, count, factor.data()); });
    return cudaSuccess;
  }
  // Arguments are taken when a kernel is launched, not when it runs.
  auto copies = std::make_shared<Copies>(*static_cast<Copies*>(arguments[0]));
  auto factor = kernel.kind == Kernel::COPY
                    ? std::string()
                    : std::string(static_cast<char*>(arguments[1]), kernel.element.factor_size);
  add(stream, [=] {
    for (unsigned i = 0; i < grid.x / kBlocksPerCopy; ++i) {
      if (kernel.kind == Kernel::COPY) {
        std::memmove(copies->out[i], copies->in[i], copies->sizes[i]);
      } else {
        kernel.element.scale(copies->in[i], copies->out[i], copies->sizes[i] / kernel.element.size, factor.data());
      }
    }
  });
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in for CUDA"; }

}  // extern "C"
